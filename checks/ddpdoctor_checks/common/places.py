"""Where ranks and nodes are: hosts by node, ranks by node, machines, and the address of the meeting point."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from ddpdoctor.evidence import Evidence, Frame, Interface, NodeFacts, RankSet
from ddpdoctor.evidence.sources import SourcePlace
from ddpdoctor.judge import CannotLook, NotApplicable, Where

_VIRTUAL = re.compile(
    r"^(lo|docker|br-|virbr|veth|cni|flannel|cali|tunl|vxlan|kube|podman|ifb|dummy|sit|tap|lxc)"
)
"""Interfaces made by container runtimes, bridges and the kernel itself: never the way to another node
(names as Docker, libvirt, Podman, Calico, Flannel and iproute2 give them)."""


class Places:
    """Look-ups over one evidence, each table made once."""

    def __init__(self, evidence: Evidence) -> None:
        self._launch = evidence.launch
        self.facts: dict[int, NodeFacts] = {node.node: node for node in evidence.nodes}
        self._ranks: dict[int, list[int]] = {}
        self._hosts = {rank.node: rank.host for rank in evidence.ranks}
        self._hosts.update({node.node: node.host for node in evidence.nodes})
        for rank in evidence.ranks:
            self._ranks.setdefault(rank.node, []).append(rank.rank)

    def host(self, node: int) -> str:
        """Return a node's host name; ``node 3`` where nothing was heard of it."""
        return self._hosts.get(node, f"node {node}")

    def hosts(self, nodes: Iterable[int]) -> tuple[str, ...]:
        """Return the host names of ``nodes`` in order, each once."""
        return tuple(dict.fromkeys(self.host(node) for node in nodes))

    @property
    def per_node(self) -> int:
        """Ranks that the launch puts on a node; another launcher tells it only by the size of the world."""
        launch = self._launch
        if launch.nproc * launch.nnodes == launch.world_size or launch.world_size % max(launch.nnodes, 1):
            return launch.nproc
        return launch.world_size // launch.nnodes

    def count(self, node: int) -> int:
        """Return how many ranks are on a node: those that reported, else those that the launch puts there."""
        return len(self._ranks.get(node, ())) or self.per_node

    def ranks(self, nodes: Iterable[int]) -> RankSet:
        """Return the ranks on ``nodes``: those that reported, else those that the launch puts there."""
        size = self.per_node
        found: list[int] = []
        for node in nodes:
            expected = range(node * size, min((node + 1) * size, self._launch.world_size))
            found.extend(self._ranks.get(node) or expected)
        return RankSet(found)


def require_several_nodes(evidence: Evidence) -> None:
    """Return only where the world spans nodes.

    Raises:
        NotApplicable: there is one node.
    """
    if evidence.launch.nnodes < 2:
        raise NotApplicable("single node")


def require(evidence: Evidence, kind: str, what: str) -> None:
    """Return only where something of ``kind`` was gathered.

    Args:
        evidence: all of it.
        kind: an evidence kind.
        what: words for what is missing, e.g. ``the ranks' environment``.

    Raises:
        NotApplicable: it was not asked for.
        CannotLook: it is missing.
    """
    if getattr(evidence, kind):
        return
    why = evidence.absent.get(kind)
    if why is None:
        raise CannotLook(f"no evidence of {what}")
    if not why.applicable:
        raise NotApplicable(why.reason)
    raise CannotLook(f"no evidence of {what}: {why.reason}")


def on_one_machine(evidence: Evidence) -> bool:
    """Whether all nodes of the launch are known to be one machine (agents started side by side)."""
    seen = {node.node: node.boot_id for node in evidence.nodes}
    return len(seen) >= evidence.launch.nnodes and None not in seen.values() and len(set(seen.values())) == 1


def ranks_per_node(evidence: Evidence) -> dict[int, int]:
    """Return node -> number of ranks; what was asked for where no rank left facts."""
    counts: dict[int, int] = {}
    for facts in evidence.ranks:
        counts[facts.node] = counts.get(facts.node, 0) + 1
    return counts or {node: evidence.launch.nproc for node in range(evidence.launch.nnodes)}


def count_cores(evidence: Evidence, node: int) -> float | None:
    """Return the cores that a node's ranks may use by affinity and cgroup quota; None when unknown.

    A launcher may bind each rank to cores of its own: then the launching process, which is one of them, has only its
    share, and the node's are those of all ranks together.
    """
    cpus = next((facts.cpus for facts in evidence.nodes if facts.node == node), None)
    if cpus is None:
        return None
    bound = RankSet().union(*(rank.cores for rank in evidence.ranks if rank.node == node))
    cores = float(max(cpus.affinity, len(bound)))
    return cores if cpus.quota is None else min(cores, cpus.quota)


def is_loopback(address: str) -> bool:
    """Whether an address or host name always means the machine itself: 127.0.0.0/8, ::1, localhost."""
    bare = address.strip("[]").split("%")[0].lower()
    if bare == "localhost" or bare.endswith(".localhost"):
        return True
    try:
        parsed = ipaddress.ip_address(bare)
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)


def split_endpoint(endpoint: str) -> tuple[str, int | None]:
    """Return host and port of ``host:port``, ``[::1]:port``, ``host`` or a bare IPv6 address."""
    if endpoint.startswith("["):
        host, _, rest = endpoint[1:].partition("]")
        return host, int(rest[1:]) if rest[1:].isdigit() else None
    host, mark, port = endpoint.rpartition(":")
    if not mark or ":" in host:
        return endpoint, None
    return host, int(port) if port.isdigit() else None


def join_endpoint(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def routable_addresses(interface: Interface) -> tuple[str, ...]:
    """Return the addresses of an interface that another node could reach."""
    found = []
    for address in interface.addresses:
        try:
            parsed = ipaddress.ip_address(address.split("%")[0].split("/")[0])
        except ValueError:
            continue
        if not (parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified):
            found.append(str(parsed))
    return tuple(found)


def choose_interface(node: NodeFacts, prefer: Iterable[str] = ()) -> Interface | None:
    """Return the interface of ``node`` over which other nodes most likely reach it.

    The one of the route to the master goes first, then names in ``prefer`` (what other nodes use), then the
    first that is up, has a routable address and was not made by a container runtime.
    """
    usable = [each for each in node.interfaces if each.up and not each.loopback and routable_addresses(each)]
    for name in (node.route_interface, *prefer):
        for each in usable:
            if each.name == name:
                return each
    return next((each for each in usable if not _VIRTUAL.match(each.name)), None)


def in_frame(frame: Frame, ranks: RankSet, role: str, host: str | None = None) -> Where:
    """Return a line of a stack as a place of a finding."""
    return Where(ranks, role, frame.file, frame.line, frame.function, frame.source, host)


def in_line(line: Frame | None, ranks: RankSet, role: str) -> tuple[Where, ...]:
    """Return a line as the only place of a finding; none where it is not known."""
    return (in_frame(line, ranks, role),) if line is not None else ()


def in_source(place: SourcePlace, role: str) -> Where:
    """Return a place that was read as one of a finding; of which ranks nobody can tell."""
    return Where(
        RankSet(),
        role,
        place.file,
        place.line,
        place.function,
        place.text,
        column=place.column,
        cell=place.cell,
        indent=place.indent,
    )
