"""Evidence about names, ports, paths between nodes, and the rendezvous."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddpdoctor.evidence.ranks import RankSet


@dataclass(frozen=True, slots=True)
class Resolution:
    """One name asked for on one node."""

    node: int
    name: str
    purpose: str
    """master, peer (a host name that another node publishes) or self."""
    of_node: int | None = None
    """The node whose name it is, for peer and self."""
    addresses: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class PortProbe:
    """The rendezvous port as the node that must listen on it finds it, or one that connects to it."""

    node: int
    port: int
    status: str
    """free, taken, denied (privileged), invalid (not 1-65535) or unassignable (address not of this node); as
    another node sees it: foreign (what listens there answers otherwise than torch's store) or silent (it has not
    answered at all)."""
    address: str | None = None
    error: str | None = None
    holder_pid: int | None = None
    holder_command: str | None = None
    """Scrubbed command line of the process that listens there, where it can be seen."""


@dataclass(frozen=True, slots=True)
class Link:
    """One attempt to reach ``target`` from ``source`` over TCP."""

    source: int
    target: int
    kind: str
    """rendezvous (master port), ephemeral (a port the target's kernel chose) or large (bulk bytes)."""
    ok: bool
    address: str | None = None
    port: int | None = None
    seconds: float | None = None
    error: str | None = None
    bytes_passed: int | None = None
    """Bytes of the largest message that came through, for kind large."""
    bytes_failed: int | None = None
    """Bytes of the smallest message that did not come through, for kind large."""
    mtu: int | None = None
    """MTU of the source's interface on that route, for kind large."""
    clock_offset_s: float | None = None
    """The target's wall clock minus the source's."""
    clock_error_s: float | None = None
    """Half the round trip over which the offset was measured."""


@dataclass(frozen=True, slots=True)
class HostMatch:
    """Whether a node believes that it hosts the rendezvous (torch compares names and addresses)."""

    node: int
    endpoint: str
    matches: bool
    names: tuple[str, ...] = ()
    """What the node calls itself: host name, FQDN and addresses."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """How far the meeting of all nodes or ranks came, seen from one node."""

    node: int
    backend: str
    endpoint: str
    expected_nodes: int
    joined_nodes: tuple[int, ...]
    expected_ranks: int
    joined_ranks: RankSet
    waited_s: float
    limit_s: float
    error: str | None = None
    duplicates: tuple[tuple[int, str, str], ...] = ()
    """Nodes or ranks claimed twice: (number, first ``host:pid``, second ``host:pid``)."""
    duplicate_kind: str = "rank"
    """What the numbers in ``duplicates`` are: rank or node."""
    worlds: tuple[tuple[int, int], ...] = ()
    """Where nodes were started for different worlds: (node, world size that it expects) of each that came."""
    limit_option: str | None = None
    """The option that sets the limit, e.g. ``--timeout``; None where there was no wait."""
    own_ranks: RankSet = field(default_factory=RankSet)
    """Ranks of the process that saw this: it is there, whether or not it reached the meeting point."""
