"""Who comes late to where ranks meet: by clocks before the meeting, for the time of a backward is the same on all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.timing import (
    DATA,
    FORWARD,
    OPTIMIZER,
    OTHER,
    STARTING,
    RankTimes,
    Timing,
    compare,
)

FEWEST_STEPS = 20
"""Fewest timed steps of which lateness is judged."""
FEWEST_COLUMNS = 12
"""Fewest columns in which it can be told who is late: of more steps, a column holds several."""
LATE_S, LATE_SHARE = 0.010, 0.2
"""Median lag, and its part of a step, from which on a rank is late: less is what schedulers and caches make."""
OFTEN = 0.75
"""Share of the steps in which a rank has to be late, by half of the least lag that counts."""
EXPLAINED = 0.5
"""Share of a lag that a phase has to be longer by than on the others. Where none is, the rank only left the last
meeting late: it shares its cores with others."""
AFTER, BUCKET = "after", "bucket"
"""Phases beside those of a step: Python behind the backward, and the backward up to the first bucket."""


@dataclass(frozen=True, slots=True)
class Late:
    """Ranks that keep coming late, in one phase."""

    ranks: RankSet
    lag_s: float
    """Median over the steps; of the rank with the largest."""
    share: float | None
    """Share of the steps in which they are late; of the rank with the smallest. None where only lengths were
    compared."""
    step_s: float
    phase: str
    """Where they lose the time."""
    more_s: float
    """How much longer that phase is than on the others."""
    whole_nodes: tuple[int, ...] = ()
    """Nodes all of whose ranks are late."""


def list_times(evidence: Evidence) -> list[RankTimes]:
    """Return what is known of all ranks."""
    return [rank for node in evidence.training for rank in node.timing.ranks]


def find_step(ranks: Iterable[RankTimes]) -> float:
    """Return the length of a usual step, in seconds; 0 where none is known."""
    return median([rank.step_s for rank in ranks] or [0.0])


def can_tell(evidence: Evidence) -> bool:
    """Whether enough steps were timed on ranks that meet; those of several nodes meet between them too."""
    timings = [node.timing for node in evidence.training]
    if max((each.steps for each in timings), default=0) < FEWEST_STEPS:
        return False
    own = max(
        (sum(lag is not None for lag in rank.lags) for each in timings for rank in each.ranks), default=0
    )
    between = max((len(each.columns) for each in timings), default=0) if len(timings) > 1 else 0
    return max(own, between) >= FEWEST_COLUMNS


def find_late(evidence: Evidence) -> list[Late]:
    """Return the ranks that keep coming late, those that lose their time in one phase together."""
    found: dict[str, list[Late]] = {}
    late_nodes = {late.whole_nodes[0]: late for late in _find_longer_nodes(evidence)}
    late_nodes.update({late.whole_nodes[0]: late for late in _find_late_nodes(evidence)})
    for node in evidence.training:
        if node.node in late_nodes:
            late = late_nodes[node.node]
            found.setdefault(late.phase, []).append(late)
            continue
        for late in _find_in_node(node.timing):
            found.setdefault(late.phase, []).append(late)
    return [_merge(each) for each in found.values()]


def _merge(many: Sequence[Late]) -> Late:
    return Late(
        RankSet().union(*(each.ranks for each in many)),
        max(each.lag_s for each in many),
        min((each.share for each in many if each.share is not None), default=None),
        max(each.step_s for each in many),
        many[0].phase,
        max(each.more_s for each in many),
        tuple(node for each in many for node in each.whole_nodes),
    )


def _find_in_node(timing: Timing) -> list[Late]:
    step_s = find_step(timing.ranks)
    least = max(LATE_S, LATE_SHARE * step_s)
    chosen: list[tuple[RankTimes, float, float]] = []
    for rank in timing.ranks:
        judged = _judge_lags([lag for lag in rank.lags if lag is not None], least)
        if judged is not None:
            chosen.append((rank, *judged))
    late = {rank.rank for rank, _, _ in chosen}
    others = [rank for rank in timing.ranks if rank.rank not in late]
    found = []
    for rank, lag, share in chosen:
        if others and _is_waited_for(rank, others, lag, timing):
            phase, more = find_phase([rank], others, lag)
            if phase is not None:
                found.append(Late(RankSet((rank.rank,)), lag, share, step_s, phase, more))
    for rank in others:
        if (
            rank.slower_s is not None
            and rank.slower_s >= least
            and len(others) > 1
            and timing.device == "cpu"
        ):
            found.append(Late(RankSet((rank.rank,)), rank.slower_s, OFTEN, step_s, BUCKET, rank.slower_s))
    return found


def _judge_lags(lags: Sequence[float], least: float) -> tuple[float, float] | None:
    """Return median and share of steps; None where they do not say that the rank keeps coming late."""
    if len(lags) < FEWEST_COLUMNS:
        return None
    middle = median(lags)
    share = sum(lag >= least / 2 for lag in lags) / len(lags)
    return (middle, share) if middle >= least and share >= OFTEN else None


def _is_waited_for(rank: RankTimes, others: Sequence[RankTimes], lag: float, timing: Timing) -> bool:
    """Whether the others wait for a rank whose program is late: on a GPU the queue of kernels may hide that."""
    if timing.device == "cpu":
        return True
    waits = [each.exposed_s for each in others if each.exposed_s is not None]
    if rank.exposed_s is None or not waits:
        return False
    return median(waits) - rank.exposed_s >= EXPLAINED * lag


def find_phase(
    late: Sequence[RankTimes], others: Sequence[RankTimes], lag: float
) -> tuple[str | None, float]:
    """Return the phase that is longer on late ranks than on others, and by how much; None where none explains it."""

    def more(phases: Sequence[str]) -> float:
        return median(each.spend(*phases) for each in late) - median(each.spend(*phases) for each in others)

    longer = {
        DATA: more((DATA, STARTING)),
        FORWARD: more((FORWARD,)),
        OPTIMIZER: more((OPTIMIZER,)),
        OTHER: more((OTHER,)),
    }
    after = [[each.after_s for each in ranks if each.after_s is not None] for ranks in (late, others)]
    if all(after):
        longer[AFTER] = median(after[0]) - median(after[1])
    phase, most = max(longer.items(), key=lambda item: item[1])
    return (phase, most) if most >= EXPLAINED * lag else (None, 0.0)


def _find_late_nodes(evidence: Evidence) -> list[Late]:
    """Return nodes that come late as a whole, where their clocks were compared well enough to tell."""
    nodes = [node for node in evidence.training if node.timing.arrivals_ns]
    clocks = {
        member.node: (member.clock_offset_s, member.clock_error_s or 0.0)
        for member in evidence.members
        if member.clock_offset_s is not None
    }
    nodes = [node for node in nodes if node.node in clocks]
    if len(nodes) < 2 or len({(each.timing.columns, each.timing.width) for each in nodes}) > 1:
        return []
    step_s = find_step(rank for node in nodes for rank in node.timing.ranks)
    lags: dict[int, list[float]] = {node.node: [] for node in nodes}
    for place in range(len(nodes[0].timing.columns)):
        came = {
            node.node: arrival / 1e9 - clocks[node.node][0]
            for node in nodes
            if (arrival := node.timing.arrivals_ns[place]) is not None
        }
        if len(came) > 1:
            for number, late in zip(came, compare(list(came.values())), strict=True):
                lags[number].append(late)
    found = []
    error = 2 * max(clocks[node.node][1] for node in nodes)
    for node in nodes:
        judged = _judge_lags(lags[node.node], max(LATE_S, LATE_SHARE * step_s) + error)
        others = [rank for each in nodes if each is not node for rank in each.timing.ranks]
        if judged is None or node.timing.device != "cpu":
            continue
        phase, more = find_phase(node.timing.ranks, others, judged[0])
        if phase is not None:  # clocks drift: the program has to bear it out
            ranks = RankSet(rank.rank for rank in node.timing.ranks)
            found.append(Late(ranks, *judged, step_s, phase, more, (node.node,)))
    return found


def _find_longer_nodes(evidence: Evidence) -> list[Late]:
    """Return nodes whose ranks need longer from one meeting to the next, and for which the others are seen to wait.

    No clock is compared: all leave a reduction when the last one has come.
    """
    nodes = [node for node in evidence.training if node.timing.ranks]
    if len(nodes) < 2:
        return []
    step_s = find_step(rank for node in nodes for rank in node.timing.ranks)
    own = [median(_spend_alone(rank) for rank in node.timing.ranks) for node in nodes]
    waits = [[rank.exposed_s for rank in node.timing.ranks if rank.exposed_s is not None] for node in nodes]
    if not all(waits):
        return []
    reductions = median(node.timing.reductions for node in nodes)
    waited = [-reductions * less for less in compare([median(each) for each in waits])]
    found = []
    for node, lag, seen in zip(nodes, compare(own), waited, strict=True):
        if lag < max(LATE_S, LATE_SHARE * step_s) or seen < EXPLAINED * lag:
            continue
        others = [rank for each in nodes if each is not node for rank in each.timing.ranks]
        phase, more = find_phase(node.timing.ranks, others, lag)
        if phase is not None:
            ranks = RankSet(rank.rank for rank in node.timing.ranks)
            found.append(Late(ranks, lag, None, step_s, phase, more, (node.node,)))
    return found


def _spend_alone(rank: RankTimes) -> float:
    """Return how long a rank is on its own between two meetings."""
    return rank.spend(DATA, STARTING, FORWARD, OPTIMIZER, OTHER) + (rank.after_s or 0.0)
