"""Slow nodes, ranks and links, told from their peers by measured pairs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ddpdoctor.evidence import Evidence, PairRow, RankSet
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.places import Places, count_cores, ranks_per_node
from ddpdoctor_checks.common.rank_devices import GPU_BACKENDS, find_device, on_gpu
from ddpdoctor_checks.common.stage_evidence import explain_missing
from ddpdoctor_checks.common.wording import choose_form, count_of, format_bytes, join_words

SLOW = 0.5
"""Half the speed of the peers: dlrover's network check calls a node a straggler at twice the median time."""

SLOW_TCP = 1 / 3
"""Over TCP, where samples vary by half and more: simulated worlds of 3 to 8 nodes whose samples vary by 60 %
gave a false alarm in up to 5 % of cases at a half, and in none of 10,000 at a third (repeated in the
tests)."""

SLOW_CROWDED = 0.25
"""Where ranks outnumber cores, and between ranks of one CPU node: the scheduler alone can double a pair's
time."""

MOST_NAMED = 64
"""Pairs that a finding lists; more are counted in the details."""

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Member:
    """A node or rank that is slow with every partner."""

    speed: float
    """GB/s with its best partner."""
    way: str
    """sends, receives or both."""


@dataclass(frozen=True, slots=True)
class Slowness:
    """What stands out in one group of comparable pairs. Bandwidths in GB/s."""

    typical: float
    """Median over members of the best that each reaches with any partner."""
    members: dict[int, Member]
    links: dict[Pair, float]
    """Slow pairs (lower member first) of members that are not slow themselves -> the pair's best."""
    rounds: int
    pairs: int


def find_slowness(rows: Sequence[PairRow], ratio: float, *, complete: bool) -> Slowness | None:
    """Find members and links below ``ratio`` of what is typical; None where there are too few to compare.

    A direction of a pair counts as slow only if its *best* sample is, and what is typical is made of *worst*
    samples, so that noise alone does not make a pair slow. A member is slow if all that it sends, or all
    that it receives, is slow, with two partners or more (a shaped interface slows one direction); what it
    explains is not held against its partners. A link is slow if both of its directions are, neither end is
    slow, and it is so beside the worst samples of the others too: among many noisy pairs one is low by
    chance. Where not all pairs were measured it must have been slow in two rounds: dlrover's check by new
    partners. Pairs that had to send less than others, because they were slow or the machine was busy for a
    moment, say nothing of what is typical: a short burst can be much faster than the link.

    Args:
        rows: pairs that can be compared with each other.
        ratio: share of what is typical below which a pair is slow.
        complete: all pairs were measured.
    """
    samples: dict[Pair, list[float]] = {}
    rounds: dict[Pair, set[int]] = {}
    for row in rows:
        samples.setdefault((row.source, row.target), []).append(row.bandwidth)
        rounds.setdefault(_unordered((row.source, row.target)), set()).add(row.round)
    if len(rounds) < 3:
        return None
    typical = statistics.median(_find_best(rows).values())
    slow = {pair: max(values) for pair, values in samples.items() if max(values) < ratio * typical}
    members = _find_members(samples, slow)
    others = [min(values) for pair, values in samples.items() if members.keys().isdisjoint(pair)]
    usual = ratio * statistics.median(others) if others else 0.0
    links: dict[Pair, float] = {}
    for pair, speed in slow.items():
        back = slow.get((pair[1], pair[0]))
        agreed = complete or len(rounds[_unordered(pair)]) > 1
        if back is not None and agreed and members.keys().isdisjoint(pair) and max(speed, back) < usual:
            links[_unordered(pair)] = max(speed, back)
    return Slowness(typical, members, links, len({row.round for row in rows}), len(rounds))


def _find_best(rows: Sequence[PairRow]) -> dict[int, float]:
    """Return for each member the worst sample of its best pair, among those that sent full messages."""
    largest = max(row.bytes for row in rows)
    worst: dict[Pair, float] = {}
    for row in rows:
        if row.bytes == largest:
            pair = (row.source, row.target)
            worst[pair] = min(worst.get(pair, row.bandwidth), row.bandwidth)
    best: dict[int, float] = {}
    for pair, speed in worst.items():
        for member in pair:
            best[member] = max(best.get(member, 0.0), speed)
    return best


def _unordered(pair: Pair) -> Pair:
    return (min(pair), max(pair))


def _find_members(samples: Iterable[Pair], slow: Mapping[Pair, float]) -> dict[int, Member]:
    """Return the members all of whose pairs, as source or as target, are slow."""
    ways: dict[tuple[int, int], list[Pair]] = {}
    for pair in samples:
        for side in (0, 1):
            ways.setdefault((pair[side], side), []).append(pair)
    found: dict[int, Member] = {}
    for (member, side), pairs in ways.items():
        if len(pairs) > 1 and all(pair in slow for pair in pairs):
            speed = max(slow[pair] for pair in pairs)
            before = found.get(member)
            way = "both" if before else ("sends", "receives")[side]
            found[member] = Member(max(speed, before.speed) if before else speed, way)
    return dict(sorted(found.items()))


@check(
    "PRF002",
    family="bandwidth",
    needs=("pairs",),
    variants={"bw.links.nodes": "node", "bw.links.ranks": "rank"},
    required=False,
)
def find_link_slow(evidence: Evidence, *, variant: str) -> Iterable[Finding]:
    """Bytes pass more slowly to one node, to one rank or over one link than between its peers."""
    places = Places(evidence)
    rows = [row for row in evidence.pairs if row.level == variant and row.bandwidth > 0]
    if not rows:
        if variant == "node" and evidence.launch.nnodes < 2:
            raise NotApplicable("single node")
        if evidence.launch.world_size < 3 or (variant == "node" and evidence.launch.nnodes < 3):
            raise NotApplicable("one pair only: nothing to compare it with")
        raise explain_missing(evidence, "bandwidth", f"pairs of {variant}s")
    ratio = _choose_ratio(evidence, variant)
    members = {member for row in rows for member in (row.source, row.target)}
    tried = {_unordered((row.source, row.target)) for row in rows}
    complete = len(tried) == len(members) * (len(members) - 1) // 2
    compared = False
    for label, group in _group(evidence, rows, variant).items():
        found = find_slowness(group, ratio, complete=complete)
        if found is None:
            continue
        compared = True
        if found.members:
            yield _slow_members(evidence, places, variant, label, found, group)
        if found.links:
            yield _slow_links(evidence, places, variant, label, found, group)
    if not compared:
        raise NotApplicable("fewer than three pairs of a kind: nothing to compare them with")


def _choose_ratio(evidence: Evidence, level: str) -> float:
    """Return the threshold for this world.

    Raises:
        CannotLook: the scheduler would be measured and not the links.
    """
    crowded = None
    if not any(on_gpu(facts) for facts in evidence.ranks):
        for node, count in ranks_per_node(evidence).items():
            cores = count_cores(evidence, node)
            if cores is not None and count > cores:
                crowded = f"{count_of(count, 'rank')} share {cores:g} cores of {Places(evidence).host(node)}"
    if crowded and level == "rank":
        raise CannotLook(f"{crowded}: their pairs would measure the scheduler")
    if evidence.launch.backend in GPU_BACKENDS:
        return SLOW
    return SLOW_CROWDED if crowded or level == "rank" else SLOW_TCP


def _group(evidence: Evidence, rows: Sequence[PairRow], level: str) -> dict[str, list[PairRow]]:
    """Split pairs into groups that can be compared: for ranks by what joins them.

    Not by size: where a full message would take too long, a smaller one was sent, and just these are slow.
    """
    node_of = {facts.rank: facts for facts in evidence.ranks}
    nodes = {node.node: node for node in evidence.nodes}
    nodes_measured = any(row.level == "node" for row in evidence.pairs)
    groups: dict[str, list[PairRow]] = {}
    for row in rows:
        kind = ""
        first, second = node_of.get(row.source), node_of.get(row.target)
        if level == "rank" and first is not None and second is not None:
            kind = " between nodes"
            if first.node != second.node and nodes_measured:
                continue  # the same paths, told by the row of the nodes
            if first.node == second.node:
                node = nodes.get(first.node)
                one, other = find_device(node, first), find_device(node, second)
                link = one.links.get(str(other.index), "") if one is not None and other is not None else ""
                kind = f" within a node{f' ({link})' if link else ''}"
        groups.setdefault(kind, []).append(row)
    return groups


def _name(places: Places, level: str, number: int) -> str:
    return places.host(number) if level == "node" else f"rank {number}"


def _owners(
    evidence: Evidence, places: Places, level: str, members: Iterable[int]
) -> tuple[RankSet, tuple[str, ...]]:
    """Return the ranks and hosts of nodes or ranks."""
    wanted = set(members)
    if level == "node":
        return places.ranks(sorted(wanted)), places.hosts(sorted(wanted))
    hosts = dict.fromkeys(facts.host for facts in evidence.ranks if facts.rank in wanted)
    return RankSet(wanted), tuple(hosts)


_WAYS = {
    "both": "is|are",
    "sends": "is when sending|are when sending",
    "receives": "is when receiving|are when receiving",
}


def _slow_members(
    evidence: Evidence, places: Places, level: str, label: str, found: Slowness, rows: Sequence[PairRow]
) -> Finding:
    ranks, hosts = _owners(evidence, places, level, found.members)
    ways: dict[str, list[str]] = {}
    for number, member in found.members.items():
        ways.setdefault(_WAYS[member.way], []).append(_name(places, level, number))
    said = join_words(
        f"{join_words(names)} {choose_form(len(names), *way.split('|'))}" for way, names in ways.items()
    )
    speed = max(member.speed for member in found.members.values())
    pairs = [row for row in rows if row.source in found.members or row.target in found.members]
    return Finding(
        message=(
            f"{said[0].upper() if level == 'rank' else said[0]}{said[1:]} slow with every partner: "
            f"{speed:.2g} GB/s at best, {speed / found.typical:.0%} of the typical {found.typical:.2g} "
            f"GB/s{label}."
        ),
        ranks=ranks,
        nodes=hosts,
        pairs=_list_pairs(places, level, [(row.source, row.target) for row in pairs]),
        evidence=_samples(places, level, pairs),
        fix=_fixes(level, hosts),
        details=_details(level, label, found, speed),
        confidence="high" if found.rounds > 1 else "medium",
    )


def _slow_links(
    evidence: Evidence, places: Places, level: str, label: str, found: Slowness, rows: Sequence[PairRow]
) -> Finding:
    ends = {member for pair in found.links for member in pair}
    ranks, hosts = _owners(evidence, places, level, ends)
    speed = max(found.links.values())
    names = [f"{_name(places, level, a)} - {_name(places, level, b)}" for a, b in found.links]
    pairs = [row for row in rows if _unordered((row.source, row.target)) in found.links]
    return Finding(
        message=(
            f"{choose_form(len(names), 'The link', 'The links')} {join_words(names)} "
            f"{choose_form(len(names), 'is', 'are')} slow: {speed:.2g} GB/s at best, "
            f"{speed / found.typical:.0%} of the typical {found.typical:.2g} GB/s{label}; the same {level}s "
            "are not slow with others."
        ),
        ranks=ranks,
        nodes=hosts,
        pairs=_list_pairs(places, level, found.links),
        evidence=_samples(places, level, pairs),
        fix=_fixes(level, hosts),
        details=_details(level, label, found, speed),
        confidence="high" if found.rounds > 1 else "medium",
    )


def _list_pairs(places: Places, level: str, pairs: Iterable[Pair]) -> tuple[tuple[str, str], ...]:
    unordered = dict.fromkeys(_unordered(pair) for pair in pairs)
    return tuple((_name(places, level, a), _name(places, level, b)) for a, b in unordered)[:MOST_NAMED]


def _samples(places: Places, level: str, rows: Sequence[PairRow]) -> tuple[EvidenceItem, ...]:
    return tuple(
        EvidenceItem(
            "pair",
            f"{_name(places, level, row.source)} to {_name(places, level, row.target)}, round {row.round}: "
            f"{row.bandwidth:.3g} GB/s with {format_bytes(row.bytes)}",
        )
        for row in rows[:8]
    )


def _details(level: str, label: str, found: Slowness, speed: float) -> dict[str, object]:
    return {
        "level": level,
        "compared": label.strip(),
        "typical": found.typical,
        "best": speed,
        "ratio": speed / found.typical,
        "members": list(found.members)[:MOST_NAMED],
        "rounds": found.rounds,
        "pairs_measured": found.pairs,
    }


def _fixes(level: str, hosts: Sequence[str]) -> tuple[Fix, ...]:
    where, server = join_words(hosts) or "that node", hosts[0] if hosts else "NODE"
    network = Fix(
        f"on {where} compare negotiated speed, errors and traffic shaping with a good node",
        command="grep . /sys/class/net/*/speed; ip -s link; tc qdisc show",
    )
    measure = Fix(
        "measure the path without torch",
        command=f"iperf3 -s  # on {server}; then on another: iperf3 -c {server} -t 10",
    )
    if level == "node":
        return network, measure
    return (
        Fix(
            f"check how the devices of {where} are connected, and which NUMA node they belong to",
            command="nvidia-smi topo -m; lscpu | grep NUMA",
        ),
        network,
    )
