"""Whom a waiting rank needs: told by the numbers of the calls of both sides, never by where they stand alone.

A rank that has begun the call that another waits in has done its part, wherever it stands now: the other one gets on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.standstill import MAKERS, Call, Stand, name_points
from ddpdoctor_checks.job.hangs.standing import Place, essence

BACKWARD, FORWARD = "backward", "DistributedDataParallel.forward"
UNKNOWN = "unknown"
"""Op of a call of which only the number is known: a program that makes new shapes at each step fills the tables."""
PENDING = 60
"""Asynchronous calls of a rank that it may be waiting for."""


@dataclass(frozen=True, slots=True)
class Need:
    """Whom the ranks in one call wait for."""

    ranks: frozenset[int] = frozenset()
    """Those that have not done their part; empty: what they wait for is on its way."""
    differing: frozenset[int] = frozenset()
    """Those of these ranks that made another call at its number."""
    every: bool = True
    """All of them have to do it; else any one is enough."""
    sure: bool = True
    """The numbers tell; else a thread may have made it, a call had raised before, or what was made was overwritten."""


def call_at(place: Place, series: str, ordinal: int) -> Call | None:
    """Return the call of a rank with this number; None where it is not known."""
    call = place.call
    if call is not None and (call.series, call.ordinal) == (series, ordinal):
        return call
    return next(
        (each for each in reversed(place.stand.recent) if (each.ordinal, each.series) == (ordinal, series)),
        None,
    )


def list_pending(place: Place) -> list[Call]:
    """Return the calls that a rank has asked for and that may not be over: it may wait for any of them."""
    if place.kind == "device":
        return list_queued(place.stand)
    asked = [call for call in place.stand.recent if call.asynchronous or call.returned is None]
    return [call for call in asked[-PENDING:] if call.op != "monitored_barrier"]


def is_queued(call: Call) -> bool:
    """Whether a call comes back once it is queued on a device: that it has returned does not say that it is over."""
    return (call.collective or call.point_to_point) and call.device not in (None, "cpu", "meta")


def list_queued(stand: Stand) -> list[Call]:
    """Return the collectives that a rank has queued on its device, as far as they are known.

    Those of DistributedDataParallel's reducer come from C++: of each wrapper the last forward that reduces stands for
    them, whose backward has queued them where the rank has come that far.
    """
    recent = stand.recent[-PENDING:]
    queued = [call for call in recent if is_queued(call)]
    if "nccl" in (stand.backend or "").lower():
        last = {call.index: call for call in recent if call.op == FORWARD and call.reduces}
        queued += [replace(call, op=BACKWARD, device="cuda") for call in last.values()]
    return queued


@dataclass(slots=True)
class Ranks:
    """All ranks of a look, asked who of them others wait for."""

    by_rank: Mapping[int, Place]
    unseen: bool = False
    """Whether there are ranks of which nothing is known."""
    _known: dict[tuple[object, ...], Need] = field(default_factory=dict)
    _passed: dict[tuple[str, RankSet], int] = field(default_factory=dict)

    def list_open(self, place: Place) -> tuple[Call, ...]:
        """Return the calls that a rank has asked for and may wait for: those that not all ranks have gone past."""
        calls = [call for call in list_pending(place) if not call.over]
        queued = place.kind == "device"
        return tuple(
            call
            for call in calls
            if call.point_to_point
            or call.ordinal >= self._lowest(call)
            or (queued and call.over is False)  # all have queued it, and it does not end
        )

    def _lowest(self, call: Call) -> int:
        """Return how far the last of the ranks has come in the series of a call."""
        call = replace(call, op=FORWARD) if call.op == BACKWARD else call
        key = (call.series, call.members)
        lowest = self._passed.get(key)
        if lowest is None:
            seen = (self.by_rank[rank] for rank in call.members or self.by_rank if rank in self.by_rank)
            lowest = min((place.stand.counts.get(key[0], 0) for place in seen), default=0)
            self._passed[key] = lowest
        return lowest

    def list_needs(self, place: Place) -> list[Need]:
        """Return whom a waiting rank needs: it can never go on where none of these can be met; none: it may go on."""
        if place.kind in ("work", "device"):
            needs = [self.find_need(place, call) for call in place.pending]
            # Nothing here tells which of the calls on a device are over.
            return [replace(need, sure=need.sure and place.kind == "work") for need in needs if need.ranks]
        if place.call is None or place.kind == "functional":
            return []
        return [self.find_need(place, place.call)]

    def find_need(self, place: Place, call: Call) -> Need:
        """Return whom a rank needs to come back from a call."""
        if call.point_to_point:
            return _find_other_side(place, call, self.by_rank, self.unseen)
        if call.over:
            return Need()  # torch's own recorder says so
        series = call.series
        key = (series, call.ordinal, call.members, *essence(call))
        need = self._known.get(key)
        if need is None:
            need = self._known[key] = _find_missing(call, series, self.by_rank)
        doubtful = place.stand.raised or (call.op == BACKWARD and uses_device(place))
        return replace(need, sure=False) if doubtful and need.sure else need


def _find_missing(call: Call, series: str, by_rank: Mapping[int, Place]) -> Need:
    members = call.members
    known = bool(members) or call.default_group or (not call.group and call.op not in _OF_A_WRAPPER)
    missing: set[int] = set()
    differing: set[int] = set()
    # It has a time limit of its own, after which scripts go on.
    sure = known and call.op != "monitored_barrier"
    for rank in members or by_rank:
        other = by_rank.get(rank)
        part = _find_part(call, series, other) if other is not None else "done"
        if part == "done" or other is None:
            continue
        missing.add(rank)
        if part == "differs":
            differing.add(rank)
        sure = sure and part != "unknown" and tells_all(other)
    return Need(frozenset(missing), frozenset(differing), True, sure)


_OF_A_WRAPPER = ("DistributedDataParallel", FORWARD, BACKWARD)


def uses_device(place: Place) -> bool:
    """Whether a rank queues its collectives on a device: its backward waits for that, and not for other ranks."""
    return "nccl" in (place.stand.backend or "").lower() or any(map(is_queued, place.stand.recent))


def tells_all(place: Place) -> bool:
    """Whether what a rank has not called it cannot be about to call elsewhere."""
    stand = place.stand
    return place.kind == "gone" or (stand.threads <= 1 and not stand.others and not stand.raised)


def _find_part(call: Call, series: str, other: Place) -> str:
    """Return what another rank has done of a call: done, missing, differs or unknown."""
    ordinal = call.ordinal
    if call.op == BACKWARD and call.device is not None:
        # Queued: who has begun that forward will queue it as well.
        series = replace(call, op=FORWARD).series
    elif call.op == BACKWARD:
        theirs = other.call
        if theirs is not None and theirs.op == BACKWARD and theirs.series == series:
            return "done" if theirs.ordinal >= ordinal else "missing"
        series, ordinal = replace(call, op=FORWARD).series, ordinal + 1  # the next forward: it is through
    begun = other.call
    if call.op == FORWARD and begun is not None and (begun.op, begun.series) == (FORWARD, series):
        return "done" if begun.ordinal >= ordinal else "missing"
    count = other.stand.counts.get(series, 0 if other.stand.complete else None)
    if count is None:
        return "unknown"
    if count < ordinal:
        return "missing"
    if not call.group or call.op in MAKERS:
        return "done"
    made = call_at(other, series, ordinal)
    if made is None or UNKNOWN in (made.op, call.op) or essence(made) == essence(call):
        return "done"
    return "differs"


def _find_other_side(place: Place, call: Call, by_rank: Mapping[int, Place], unseen: bool) -> Need:
    sends, tag, group, me = "send" in call.op, call.tag or 0, call.group, place.rank
    mine = place.stand.counts
    of_any = mine.get(name_points(False, None, tag, group), 0)
    if call.peer is None:
        ranks = [rank for rank in call.members or by_rank if rank != me]
        seen = [by_rank[rank] for rank in ranks if rank in by_rank]
        sent = sum(other.stand.counts.get(name_points(True, me, tag, group), 0) for other in seen)
        received = of_any + sum(mine.get(name_points(False, rank, tag, group), 0) for rank in ranks)
        sure = not unseen and place.stand.complete and all(other.stand.complete for other in seen)
        if sent >= received or not seen:
            return Need(sure=sure)
        return Need(
            frozenset(each.rank for each in seen), every=False, sure=sure and all(map(tells_all, seen))
        )
    other = by_rank.get(call.peer)
    if other is None:
        return Need(frozenset((call.peer,)))
    theirs = other.stand.counts
    made = theirs.get(name_points(not sends, me, tag, group), 0)
    if sends:
        made += theirs.get(name_points(False, None, tag, group), 0)
    if made >= call.ordinal:
        return Need()
    sure = other.stand.complete and (sends or not of_any) and tells_all(other) and not place.stand.raised
    return Need(frozenset((call.peer,)), sure=sure)
