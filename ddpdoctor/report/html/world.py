"""The world as the page shows it: nodes, ranks and devices, folded where there are many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ddpdoctor.evidence import Evidence, NodeFacts, RankFacts, RankSet
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.model import Node, Report
from ddpdoctor.report.words import count, fold_hosts, format_bytes, format_ranks, format_seconds

NODES_SHOWN = 32
"""More nodes than this are folded into kinds of equal nodes: a screen holds about that many rows."""
RANKS_SHOWN = 64
"""More ranks than this are folded by local rank, device and threads."""
DEVICES_SHOWN = 16
"""Devices of one node: the largest common machines have 16 accelerators."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node, or several equal ones."""

    hosts: str
    number: int
    ranks: str
    devices: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    notes: tuple[tuple[str, bool], ...]
    """Words, and whether they are a warning."""
    blamed: bool


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank, or several that differ in nothing that the table shows."""

    ranks: str
    host: str
    local_rank: str
    device: str
    threads: str
    pid: str


@dataclass(frozen=True, slots=True)
class WorldView:
    """Nodes and ranks."""

    shared: tuple[tuple[str, str], ...]
    """Facts that all of several nodes have in common; the nodes themselves do not repeat them."""
    nodes: tuple[NodeView, ...]
    folded: bool
    ranks: tuple[RankRow, ...]
    ranks_folded: bool


class NodeIndex:
    """Finds what a node said of itself: by its number, or by its name in reports that give none."""

    def __init__(self, nodes: tuple[NodeFacts, ...]) -> None:
        self._by_number = {each.node: each for each in nodes}
        self._by_host = {each.host: each for each in nodes}

    def of(self, node: Node) -> NodeFacts | None:
        """Return the facts of ``node``, or None."""
        number = node.facts.get("node")
        if isinstance(number, int):
            return self._by_number.get(number)
        return self._by_host.get(node.host)


def view_world(report: Report, caps: Caps) -> WorldView:
    """Return the world of a report."""
    facts = NodeIndex(report.evidence.nodes)
    blamed = {host for finding in report.findings if finding.severity != "info" for host in finding.nodes}
    nodes = [_node(node, facts.of(node), node.host in blamed) for node in report.world.nodes]
    folded = len(nodes) > NODES_SHOWN
    shared, shown = _share(nodes)
    if folded:
        kinds = _fold_nodes(report.world.nodes, facts, blamed)
        caps.note(f"nodes: {len(nodes):,} folded into {count(len(kinds), 'kind')} of equal nodes")
        shown = caps.take(kinds, NODES_SHOWN, "kinds of nodes")
    rows = _rank_rows(report.evidence)
    ranks_folded = len(report.evidence.ranks) > RANKS_SHOWN
    if ranks_folded:
        caps.note(f"ranks: {len(report.evidence.ranks):,} folded into {count(len(rows), 'row')}")
    return WorldView(
        () if folded else shared, shown, folded, caps.take(rows, RANKS_SHOWN, "rows of ranks"), ranks_folded
    )


def _node(node: Node, facts: NodeFacts | None, blamed: bool) -> NodeView:
    rows = _common_facts(facts) + _own_facts(facts) if facts is not None else ()
    notes = _notes(facts) if facts is not None else ()
    return NodeView(node.host, 1, format_ranks(node.ranks), _devices(node, facts), rows, notes, blamed)


def _share(nodes: list[NodeView]) -> tuple[tuple[tuple[str, str], ...], tuple[NodeView, ...]]:
    """Take out of several nodes what they all have in common."""
    if len(nodes) < 2:
        return (), tuple(nodes)
    shared = tuple(fact for fact in nodes[0].facts if all(fact in node.facts for node in nodes[1:]))
    rest = [replace(node, facts=tuple(fact for fact in node.facts if fact not in shared)) for node in nodes]
    devices = nodes[0].devices
    if devices and all(node.devices == devices for node in nodes):
        shared = (("Devices", "; ".join(devices)), *shared)
        rest = [replace(node, devices=()) for node in rest]
    return shared, tuple(rest)


def _common_facts(facts: NodeFacts) -> tuple[tuple[str, str], ...]:
    """What equal machines have in common."""
    rows: list[tuple[str, str]] = []
    if facts.cpus is not None:
        cores = count(facts.cpus.affinity, "core")
        if facts.cpus.affinity != facts.cpus.logical:
            cores += f" of {facts.cpus.logical:,}"
        if facts.cpus.quota is not None:
            cores += f", quota {facts.cpus.quota:g}"
        rows.append(("Cores", cores))
    if facts.memory_total is not None:
        limit = f", limit {format_bytes(facts.memory_limit)}" if facts.memory_limit is not None else ""
        rows.append(("Memory", format_bytes(facts.memory_total) + limit))
    if facts.shared_memory is not None:
        rows.append(("/dev/shm", format_bytes(facts.shared_memory.total)))
    if facts.limits is not None and facts.limits.open_files is not None:
        rows.append(("Open files", f"{facts.limits.open_files:,}"))
    if facts.rdma_devices:
        rows.append(("RDMA", ", ".join(facts.rdma_devices)))
    if facts.system:
        rows.append(("System", facts.system))
    if facts.container:
        rows.append(("Container", facts.container))
    return tuple(rows)


def _own_facts(facts: NodeFacts) -> tuple[tuple[str, str], ...]:
    """What each machine has for itself."""
    rows: list[tuple[str, str]] = []
    if facts.advertised:
        by = f" ({facts.advertised_interface})" if facts.advertised_interface else ""
        rows.append(("Advertises", facts.advertised + by))
    if facts.route_address and facts.route_address != facts.advertised:
        by = f" ({facts.route_interface})" if facts.route_interface else ""
        rows.append(("Route to master", facts.route_address + by))
    if facts.clock_offset_s is not None and facts.node != 0:
        sign = "-" if facts.clock_offset_s < 0 else "+"
        rows.append(("Clock", sign + format_seconds(abs(facts.clock_offset_s))))
    return tuple(rows)


def _notes(facts: NodeFacts) -> tuple[tuple[str, bool], ...]:
    leftovers = count(len(facts.leftovers), "process", "processes")
    notes = [
        (f"own host name: {facts.name_error}" if facts.name_error else None, True),
        (facts.devices_note, False),
        (f"{leftovers} left by earlier jobs" if facts.leftovers else None, True),
        (f"no stacks: {facts.tracing}" if facts.tracing else None, True),
    ]
    return tuple((words, warns) for words, warns in notes if words)


def _devices(node: Node, facts: NodeFacts | None) -> tuple[str, ...]:
    """Devices of a node with equal ones counted."""
    names: Iterable[str] = node.devices
    if facts is not None and facts.devices:
        names = [
            " · ".join(
                filter(
                    None, (d.name or d.kind, _memory(d.memory_total), d.capability and f"sm {d.capability}")
                )
            )
            for d in facts.devices
        ]
    counted: dict[str, int] = {}
    for name in names:
        counted[name] = counted.get(name, 0) + 1
    listed = [f"{number} × {name}" if number > 1 else name for name, number in counted.items()]
    rest = len(listed) - DEVICES_SHOWN
    return (*listed[:DEVICES_SHOWN], f"… and {rest:,} more kinds") if rest > 0 else tuple(listed)


def _memory(number: int | None) -> str | None:
    return None if number is None else format_bytes(number)


def _fold_nodes(nodes: tuple[Node, ...], facts: NodeIndex, blamed: set[str]) -> list[NodeView]:
    """Join nodes that are equal in all but name and address; those that a finding blames come first."""
    kinds: dict[tuple[object, ...], list[Node]] = {}
    for node in nodes:
        known = facts.of(node)
        common = _common_facts(known) if known is not None else ()
        notes = _notes(known) if known is not None else ()
        key = (node.host not in blamed, _devices(node, known), common, notes, len(node.ranks))
        kinds.setdefault(key, []).append(node)
    views = []
    for members in sorted(kinds.values(), key=lambda group: (group[0].host not in blamed, len(group))):
        first = facts.of(members[0])
        views.append(
            NodeView(
                fold_hosts([node.host for node in members]),
                len(members),
                format_ranks(RankSet().union(*(node.ranks for node in members))),
                _devices(members[0], first),
                _common_facts(first) if first is not None else (),
                _notes(first) if first is not None else (),
                members[0].host in blamed,
            )
        )
    return views


def _rank_rows(evidence: Evidence) -> list[RankRow]:
    ranks = evidence.ranks
    if len(ranks) <= RANKS_SHOWN:
        return [_rank_row([rank]) for rank in sorted(ranks, key=lambda each: each.rank)]
    groups: dict[tuple[object, ...], list[RankFacts]] = {}
    for rank in ranks:
        groups.setdefault((rank.local_rank, rank.device, rank.threads), []).append(rank)
    ordered = sorted(groups.values(), key=lambda group: (group[0].local_rank, len(group)))
    return [_rank_row(group) for group in ordered]


def _rank_row(group: list[RankFacts]) -> RankRow:
    first = group[0]
    hosts = list(dict.fromkeys(each.host for each in group))
    return RankRow(
        format_ranks(RankSet(each.rank for each in group)),
        fold_hosts(hosts),
        str(first.local_rank),
        first.device,
        "unknown" if first.threads is None else str(first.threads),
        str(first.pid) if len(group) == 1 else "various",
    )
