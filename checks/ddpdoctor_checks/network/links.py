"""Paths between nodes: no connection at all, only the rendezvous port, only small packets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ddpdoctor.evidence import Evidence, Link
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, check
from ddpdoctor_checks.common.places import Places, choose_interface, require_several_nodes
from ddpdoctor_checks.common.wording import count_of, format_bytes, join_words

LINUX_EPHEMERAL = (32768, 60999)
"""Default of net.ipv4.ip_local_port_range (kernel documentation, ip-sysctl)."""

Pair = tuple[int, int]


@dataclass(slots=True)
class _Path:
    """All that was tried from one node to another, by kind of link."""

    links: dict[str, Link] = field(default_factory=dict)

    def opened(self) -> bool:
        """Whether any connection came to be; a large transfer needs one even where its bytes were lost."""
        large = self.links.get("large")
        return any(link.ok for link in self.links.values()) or bool(large is not None and large.bytes_passed)

    def failed(self, kind: str) -> bool:
        link = self.links.get(kind)
        return link is not None and not link.ok


@dataclass(slots=True)
class _Sorted:
    """Directed pairs with trouble, by what the trouble is."""

    blocked: list[Pair] = field(default_factory=list)
    unreachable: list[Pair] = field(default_factory=list)


def _collect(evidence: Evidence) -> dict[Pair, _Path]:
    paths: dict[Pair, _Path] = {}
    for link in evidence.links:
        if link.source != link.target:
            path = paths.setdefault((link.source, link.target), _Path())
            known = path.links.get(link.kind)
            if known is None or not known.ok:
                path.links[link.kind] = link
    return paths


def _collect_or_abstain(evidence: Evidence) -> dict[Pair, _Path]:
    require_several_nodes(evidence)
    paths = _collect(evidence)
    if not paths:
        raise CannotLook("no connection between nodes was tested")
    return paths


def _refused(path: _Path) -> bool:
    """Whether the other side answered that nobody listens on the rendezvous port."""
    link = path.links.get("rendezvous")
    return link is not None and not link.ok and "refused" in (link.error or "").lower()


def sort_failures(paths: dict[Pair, _Path]) -> _Sorted:
    """Tell pairs with blocked ports from pairs without any path.

    Any connection between two nodes, in either direction, proves that packets pass both ways: then only
    ports are blocked. Where nothing passed and the rendezvous port was not tried, a pair counts as blocked
    when one of its nodes blocks ports towards others as well, else as unreachable.
    """
    found = _Sorted()
    open_to: list[Pair] = []
    for (source, target), path in paths.items():
        if not path.failed("ephemeral"):
            if path.failed("rendezvous") and not path.opened() and not _refused(path):
                found.unreachable.append((source, target))
            continue
        back = paths.get((target, source))
        if path.opened() or (back is not None and back.opened()):
            found.blocked.append((source, target))
        elif path.failed("rendezvous"):
            found.unreachable.append((source, target))
        else:
            open_to.append((source, target))
    guilty = {node for pair in found.blocked for node in pair}
    for source, target in open_to:
        (found.blocked if source in guilty or target in guilty else found.unreachable).append(
            (source, target)
        )
    return found


def _blame(pairs: Sequence[Pair], nodes: int) -> list[int]:
    """Return the nodes that all pairs have in common, else all of them.

    With three nodes or more, the one that every failed pair shares is at fault.
    """
    if nodes > 2:
        common = set(pairs[0]).intersection(*(set(pair) for pair in pairs))
        if common and len(pairs) > 1:
            return sorted(common)
    return sorted({node for pair in pairs for node in pair})


def _describe_pairs(places: Places, pairs: Sequence[Pair]) -> str:
    """Return ``node-a to node-b and node-c, node-b to node-c``."""
    targets: dict[int, list[int]] = {}
    for source, target in sorted(pairs):
        targets.setdefault(source, []).append(target)
    parts = [f"{places.host(s)} to {join_words(places.hosts(ts), few=4)}" for s, ts in targets.items()]
    return join_words(parts, few=4)


def _name_pairs(places: Places, pairs: Sequence[Pair]) -> tuple[tuple[str, str], ...]:
    return tuple((places.host(source), places.host(target)) for source, target in sorted(pairs))


def _quote_links(places: Places, paths: dict[Pair, _Path], pairs: Sequence[Pair]) -> Iterator[EvidenceItem]:
    for source, target in sorted(pairs)[:16]:
        for link in paths[source, target].links.values():
            where = f"{link.address or places.host(target)}:{link.port or '?'}"
            result = "ok" if link.ok else link.error or "failed"
            yield EvidenceItem(
                "link", f"{places.host(source)} -> {places.host(target)} {link.kind} ({where}): {result}"
            )


@check("NET005", family="network", needs=("links",), id="net.ports.ephemeral")
def find_ports_blocked(evidence: Evidence) -> Iterable[Finding]:
    """The rendezvous port is reachable but ephemeral ports between some nodes are not."""
    paths = _collect_or_abstain(evidence)
    tried = sum("ephemeral" in path.links for path in paths.values())
    if not tried:
        raise CannotLook("no connection to an ephemeral port was tested")
    blocked = sort_failures(paths).blocked
    if not blocked:
        return
    places = Places(evidence)
    targets = sorted({target for _, target in blocked})
    known = [facts.ephemeral_ports for node in targets if (facts := places.facts.get(node)) is not None]
    ranges = sorted({ports for ports in known if ports is not None}) or [LINUX_EPHEMERAL]
    low, high = min(first for first, _ in ranges), max(last for _, last in ranges)
    guilty = _blame(blocked, evidence.launch.nnodes)
    sources = sorted({source for source, _ in blocked})
    yield Finding(
        message=(
            f"TCP ports {low}-{high} are blocked from {_describe_pairs(places, blocked)} ({len(blocked):,} "
            f"of {count_of(tried, 'directed pair')} tested), although these nodes reach each other."
        ),
        ranks=places.ranks(guilty),
        nodes=places.hosts(guilty),
        pairs=_name_pairs(places, blocked),
        evidence=tuple(_quote_links(places, paths, blocked)),
        fix=(
            Fix(
                f"on {join_words(places.hosts(targets))}, allow the other nodes",
                "sudo iptables -I INPUT -p tcp "
                f"-s {_addresses(places, sources)} --dport {low}:{high} -j ACCEPT",
            ),
            Fix("in a cloud, allow all TCP inside the security group of the job's machines"),
        ),
        details={"range": [low, high], "pairs": [list(pair) for pair in sorted(blocked)]},
    )


def _addresses(places: Places, nodes: Sequence[int]) -> str:
    """Return what iptables takes after -s: addresses where they are known, else host names."""
    found = []
    for node in nodes[:16]:
        facts = places.facts.get(node)
        interface = choose_interface(facts) if facts is not None else None
        address = facts.route_address if facts is not None else None
        found.append(address or (interface.addresses[0] if interface is not None else places.host(node)))
    return ",".join(found)


@check("NET013", family="network", needs=("links",), id="net.links.open")
def find_peer_unreachable(evidence: Evidence) -> Iterable[Finding]:
    """A node cannot open any TCP connection to another."""
    paths = _collect_or_abstain(evidence)
    pairs = sort_failures(paths).unreachable
    if not pairs:
        return
    places = Places(evidence)
    guilty = _blame(pairs, evidence.launch.nnodes)
    failed = [link for link in paths[sorted(pairs)[0]].links.values() if not link.ok]
    reasons = list(
        dict.fromkeys(
            link.error or "no answer" for pair in pairs for link in paths[pair].links.values() if not link.ok
        )
    )
    source, target = sorted(pairs)[0]
    address = next((link.address for link in failed if link.address), None) or places.host(target)
    yield Finding(
        message=f"No TCP connection can be opened from {_describe_pairs(places, pairs)}: "
        f"{join_words(reasons, few=3)}.",
        ranks=places.ranks(guilty),
        nodes=places.hosts(guilty),
        pairs=_name_pairs(places, pairs),
        evidence=tuple(_quote_links(places, paths, pairs)),
        fix=(
            Fix(
                f"on {places.host(source)}, check the route",
                f"ip route get {address}; ping -c 3 {address}",
            ),
            Fix(
                f"on {places.host(target)}, check whether its link and addresses are up",
                "ip -br link; ip -br address",
            ),
            Fix("then check the firewalls on both", "sudo iptables -L -n -v; sudo nft list ruleset"),
        ),
        details={"pairs": [list(pair) for pair in sorted(pairs)], "errors": reasons},
    )


@check("NET014", family="network", needs=("links",), id="net.links.large")
def find_large_packets_lost(evidence: Evidence) -> Iterable[Finding]:
    """Packets above some size vanish between two nodes (an MTU black hole)."""
    paths = _collect_or_abstain(evidence)
    tried = [pair for pair, path in paths.items() if "large" in path.links]
    if not tried:
        raise CannotLook("no large message was sent between nodes")
    places = Places(evidence)
    lost: dict[tuple[int, int], None] = {}
    for source, target in sorted(tried):
        path, back = paths[source, target], paths.get((target, source))
        reached = path.opened() or (back is not None and back.opened())
        if path.failed("large") and reached and not path.failed("ephemeral"):
            lost[source, target] = None
    if lost:
        yield _describe_lost(evidence, places, paths, list(lost))


def _describe_lost(
    evidence: Evidence, places: Places, paths: dict[Pair, _Path], lost: Sequence[Pair]
) -> Finding:
    links = [paths[pair].links["large"] for pair in lost]
    everywhere = [path.links["large"] for path in paths.values() if "large" in path.links]
    passed = min((link.bytes_passed or 0 for link in links), default=0)
    failed = min((link.bytes_failed for link in links if link.bytes_failed), default=None)
    mtus = {
        node: mtu
        for node in sorted({n for pair in lost for n in pair})
        if (mtu := _mtu(places, everywhere, node))
    }
    sizes = f"{format_bytes(passed)} still passes" if passed else "nothing but the handshake passes"
    if failed is not None:
        sizes += f", {format_bytes(failed)} does not arrive"
    guilty = _blame(lost, evidence.launch.nnodes)
    shown = join_words(f"{places.host(node)} {mtu}" for node, mtu in mtus.items())
    source, target = lost[0]
    facts = places.facts.get(source)
    interface = choose_interface(facts) if facts is not None else None
    return Finding(
        message=(
            f"Large packets are dropped from {_describe_pairs(places, lost)}: "
            f"{sizes}{f' (MTU: {shown})' if shown else ''}."
        ),
        ranks=places.ranks(guilty),
        nodes=places.hosts(guilty),
        pairs=_name_pairs(places, lost),
        evidence=tuple(_quote_links(places, paths, lost)),
        fix=advise_smaller_packets(
            places.host(source),
            links[0].address or places.host(target),
            interface.name if interface is not None else "eth0",
            min(mtus.values(), default=1500),
        ),
        details={
            "pairs": [list(pair) for pair in lost],
            "bytes_passed": passed,
            "bytes_failed": failed,
            "mtu": {places.host(node): mtu for node, mtu in mtus.items()},
        },
    )


def advise_smaller_packets(host: str, far: str, interface: str, mtu: int) -> tuple[Fix, ...]:
    """Return what to do where packets above some size vanish on the way from a host.

    Args:
        host: from which they are sent.
        far: address or name of the other one.
        interface: of the former.
        mtu: the smaller one of both ends.
    """
    return (
        Fix(
            f"on {host}, find the largest packet that passes (28 bytes are headers; "
            "lower the number until it answers)",
            f"ping -c 2 -M do -s {max(mtu - 28, 472)} {far}",
        ),
        Fix(
            "until the path is fixed, make the interfaces of all nodes that small",
            f"sudo ip link set dev {interface} mtu 1400",
        ),
        Fix("or let TCP find the size", "sudo sysctl -w net.ipv4.tcp_mtu_probing=1"),
    )


def _mtu(places: Places, links: Sequence[Link], node: int) -> int | None:
    """Return the MTU of a node towards its peers: of the route used, else of its likely interface."""
    for link in links:
        if link.source == node and link.mtu is not None:
            return link.mtu
    facts = places.facts.get(node)
    interface = choose_interface(facts) if facts is not None else None
    return interface.mtu if interface is not None else None
