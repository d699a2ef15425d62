"""Which rank spoils the others' numbers: whose loss or gradient is not finite first, whose scale is another."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.training.numerics import LossLook, ScaleLook
from ddpdoctor_checks.training.replicas.models import is_carried_throughout, list_replicas
from ddpdoctor_checks.training.wrappers import list_wrappers

_UNTRIED = 16
"""Backwards whose gradients may be unread in any job: which are looked at is chosen in the first few."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where losses and gradients that are not finite come from."""

    look: LossLook
    """The first loss or gradient that was not finite, of the first of those ranks."""
    ranks: RankSet
    """Whose loss or gradient was the first."""
    spread: RankSet
    """Whose losses are not finite since then, without those."""
    finite: RankSet
    """Whose losses are finite all the time."""
    first_after: int
    """First backward that was not finite on ranks that it spread to; 0 where there are none."""
    aligned: bool
    """All ranks made as many backwards, as far as is known."""
    passing: bool = False
    """Whether it was finite again in the next backward, which went into the same step of the optimizer."""
    sampled: bool = False
    """Gradients were looked at in some backwards only: steps are short (clocks.py of ``ddpdoctor_watch``)."""

    @property
    def everywhere(self) -> bool:
        """It began on all ranks at once: then it came from something that they have in common."""
        return not self.spread and not self.finite and len(self.ranks) > 1


@dataclass(frozen=True, slots=True)
class Scales:
    """A GradScaler whose scales differ over ranks that hold one model."""

    scaler: int
    ranks: RankSet
    first: int
    """Step with it, from 1."""
    values: dict[float, RankSet]
    """Value at that step -> the ranks that have it."""
    last: int
    last_values: dict[float, RankSet]
    frames: tuple[Frame, ...] = ()
    """Frames of the first call that was seen with the scaler."""
    by_hand: bool = False
    """No wrapper reduces the gradients: the program does."""


def find_origin(evidence: Evidence) -> Origin | None:
    """Return where losses became not finite that stayed so; None where none did."""
    looks = [look for node in evidence.training for look in node.numerics.losses]
    lasting = [look for look in looks if look.lasts]
    if not any(look.what == "loss" for look in lasting):
        return None  # gradients alone: a hook of the program's may mend them before they are used
    by_rank: dict[int, LossLook] = {}
    for look in sorted(lasting, key=_when):
        by_rank.setdefault(look.rank, look)
    first = min(map(_when, by_rank.values()))
    ranks = RankSet(rank for rank, look in by_rank.items() if _when(look) == first)
    spread = RankSet(rank for rank, look in by_rank.items() if _when(look) > first)
    counts = [count for node in evidence.training for count in node.numerics.counts]
    reading = RankSet().union(*(count.ranks for count in counts if count.checked))
    totals = {count.backwards for count in counts if count.checked}
    origin = Origin(
        look=next(by_rank[rank] for rank in ranks),
        ranks=ranks,
        spread=spread,
        finite=RankSet(
            rank
            for count in counts
            if count.checked == count.backwards >= first[0]
            for rank in count.ranks
            if rank not in by_rank
        ),
        first_after=min((by_rank[rank].backward for rank in spread), default=0),
        aligned=len(totals) == 1 and set(by_rank) <= set(reading),
        sampled=any(0 < each.gradients < each.backwards - _UNTRIED for each in counts),
    )
    return _find_passing(origin, looks) if origin.everywhere and _accumulates(evidence) else origin


def _accumulates(evidence: Evidence) -> bool:
    """Whether gradients of several backwards go into one step; where none do, a bad batch was passed over."""
    nodes = evidence.training
    return any(way.alone > 0 for node in nodes for look in node.steps for way in look.wrappers) or any(
        pace.kept > 0 for node in nodes for pace in node.syncs.paces
    )


def _when(look: LossLook) -> tuple[int, bool]:
    """Return what looks are in order by: the gradients of a backward come after its loss."""
    return look.backward, look.what == "gradient"


def _find_passing(origin: Origin, looks: Sequence[LossLook]) -> Origin:
    """Return whose micro-batch of the step before was not finite, where all ranks are not after that step.

    Under no_sync the gradients of a micro-batch wait for those that follow, which are finite, to be reduced.
    """
    before = [look for look in looks if not look.lasts and look.step == origin.look.step - 1]
    ranks = RankSet(look.rank for look in before)
    if not before or not origin.ranks.minus(ranks):
        return origin
    return replace(
        origin,
        look=min(before, key=_when),
        ranks=ranks,
        spread=origin.ranks.minus(ranks),
        first_after=origin.look.backward,
        passing=True,
    )


def find_scales(evidence: Evidence) -> list[Scales]:
    """Return the scalers whose scales part and do not become equal again, for each group that averages gradients."""
    groups = {wrapper.group: False for wrapper in list_wrappers(evidence) if len(wrapper.group) > 1}
    for replica in list_replicas(evidence):
        if replica.wrapper is None and is_carried_throughout(replica):
            groups.setdefault(replica.ranks, True)
    looks: dict[int, dict[int, list[ScaleLook]]] = {}
    for node in evidence.training:
        for look in node.numerics.scales:
            looks.setdefault(look.scaler, {}).setdefault(look.rank, []).append(look)
    found = []
    for scaler, ranks in sorted(looks.items()):
        for group in sorted(groups, key=lambda each: each.ranges):
            known = {rank: ranks[rank] for rank in group if rank in ranks}
            scales = _compare(scaler, known) if len(known) > 1 else None
            if scales is not None:
                found.append(replace(scales, by_hand=groups[group]))
    return found


def _compare(scaler: int, looks: dict[int, list[ScaleLook]]) -> Scales | None:
    reached = min(max(look.step - look.final for look in rows) for rows in looks.values())
    common = sorted(
        (look.step, rank, look.scale)
        for rank, rows in looks.items()
        for look in rows
        if look.step <= reached and not look.final
    )
    first = _find_parting(common)
    if first is None:
        return None  # they never diverged, or are equal again
    last = common[-1][0]
    return Scales(
        scaler,
        RankSet(looks),
        first,
        _at(looks, first),
        last,
        _at(looks, last),
        next((rows[0].frames for rows in looks.values() if rows[0].frames), ()),
    )


def _find_parting(changes: Sequence[tuple[int, int, float]]) -> int | None:
    """Return the first step since which ranks do not have the same scale; None where they have it in the end.

    Args:
        changes: Steps, ranks, and what scale they have from then on; in order.
    """
    scales: dict[int, float] = {}
    counts: Counter[float] = Counter()
    first = None
    for step, several in itertools.groupby(changes, key=lambda change: change[0]):
        for _, rank, scale in several:
            if rank in scales:
                counts[scales[rank]] -= 1
            scales[rank] = scale
            counts[scale] += 1
        counts = +counts
        first = None if len(counts) < 2 else step if first is None else first
    return first


def _at(looks: dict[int, list[ScaleLook]], step: int) -> dict[float, RankSet]:
    """Return the scales at a step: what was written last up to it, since changes are written."""
    values: dict[float, list[int]] = {}
    for rank, rows in looks.items():
        before = [look for look in rows if look.step <= step and not look.final]
        if before:
            values.setdefault(max(before, key=lambda look: look.step).scale, []).append(rank)
    return {value: RankSet(ranks) for value, ranks in values.items()}
