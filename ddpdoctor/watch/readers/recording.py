"""What torch's Flight Recorder of a rank told, joined with the calls that the rank wrote down itself.

The recorder holds what C++ calls by itself (the buckets of DistributedDataParallel) and what is over. Its entries and
the ring's calls have different numbers, and clocks that differ, so equal calls are counted from the end: where their
times do not agree, nothing is said of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.collectives import COMPLETED, RETIRED, STATES, CallLog, RecordedCall
from ddpdoctor.evidence.job import Moment
from ddpdoctor.evidence.standstill import Call, Recorded, Recorder, Stand
from ddpdoctor.facts.collectives import operation_of

OPEN = 20
"""Most calls of a rank that are not over and are kept."""
APART_S = 0.2
"""Most seconds between the moments at which ring and recorder saw one call: they are microseconds apart, and what
clocks were corrected by."""
SHORT_S = 0.002
"""Most seconds by which ring and recorder may differ where nothing was corrected."""


@dataclass(slots=True)
class _Entry:
    """One entry of the recorder."""

    call: RecordedCall
    group: str
    sequence: int
    state: int
    begun_ns: int
    own: bool | None = False

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return bool(self.state & RETIRED) or self.state & ~RETIRED == COMPLETED

    def age_s(self, at: Moment) -> float:
        """Return how long before a look it was made."""
        return (at.wall_ns - self.begun_ns) / 1e9 if self.begun_ns else math.inf


def join_recorder(stand: Stand, told: CallLog | str, at: Moment) -> Stand:
    """Return how a rank stands, with what its recorder told.

    Args:
        stand: of the rank.
        told: its newest entries, or why there are none.
        at: when the look was taken, by both clocks.
    """
    if isinstance(told, str):
        return replace(stand, recorder=Recorder(problem=told))
    entries = _list_entries(told)
    if not entries:
        return replace(
            stand, recorder=Recorder(problem="it contains no collective: this torch records none here")
        )
    over = _match(stand.recent, entries, at)
    members = {call.group: call.members for call in stand.recent if call.group and call.members}
    opened = [entry for entry in entries if not entry.over][:OPEN]
    recorder = Recorder(
        open=tuple(_describe(entry, members.get(entry.group), told) for entry in opened),
    )
    recent = tuple(
        replace(call, over=over[place]) if place in over else call for place, call in enumerate(stand.recent)
    )
    call = stand.call
    if call is not None and recent and (recent[-1].series, recent[-1].ordinal) == (call.series, call.ordinal):
        call = replace(call, over=recent[-1].over)
    return replace(stand, recorder=recorder, recent=recent, call=call)


def _list_entries(told: CallLog) -> list[_Entry]:
    """Return the collectives of one rank, in order."""
    entries = []
    for rank in told.ranks:
        for place, number in enumerate(rank.calls):
            call = told.calls[number]
            if not call.p2p:
                begun = rank.begun_ns[place] if place < len(rank.begun_ns) else 0
                group = told.groups[call.group].name
                entries.append(_Entry(call, group, rank.sequences[place], rank.states[place], begun))
    return entries


def _describe(entry: _Entry, members: RankSet | None, told: CallLog) -> Recorded:
    known = told.groups[entry.call.group].ranks
    return Recorded(
        op=entry.call.op,
        sequence=entry.sequence,
        group=entry.group,
        members=members or known or RankSet(),
        elements=_count(entry.call),
        dtype=next(iter(entry.call.input_types), None),
        state=STATES[entry.state & ~RETIRED],
        own=entry.own,
    )


def _count(call: RecordedCall) -> int | None:
    return sum(math.prod(shape) for shape in call.inputs) if call.inputs else None


_Kind = tuple[str, str, int | None, str | None]


def _match(calls: Sequence[Call], entries: Sequence[_Entry], at: Moment) -> dict[int, bool]:
    """Find the entries that are calls of the rank's own, and mark them.

    Returns:
        Place of a call -> whether it is over; only for those of which it can be told.
    """
    mine: dict[_Kind, list[int]] = {}
    for place, call in enumerate(calls):
        if call.collective:
            size = math.prod(call.shape) if call.shape is not None else None
            kind = (call.group, operation_of(call.op), size, call.dtype)
            mine.setdefault(kind, []).append(place)
    theirs: dict[_Kind, list[_Entry]] = {}
    for entry in entries:
        kind = (entry.group, operation_of(entry.call.op), _count(entry.call), _dtype(entry.call))
        theirs.setdefault(kind, []).append(entry)
    seen_s = (calls[0].age_s if calls else None) or 0.0
    for entry in entries:
        if entry.age_s(at) > seen_s - SHORT_S:
            entry.own = None  # before the first call that is known
    over: dict[int, bool] = {}
    for kind, places in mine.items():
        same = theirs.get(kind, [])
        pairs = list(zip(reversed(places), reversed(same), strict=False))
        left = same[: len(same) - len(pairs)]
        # One more of the same kind since then was called by C++: which of them it was cannot be told.
        sure = not left or left[-1].age_s(at) > seen_s - SHORT_S
        sure = sure and all(_is_at(calls[place], entry, at) for place, entry in pairs)
        for entry in same:
            entry.own = None
        for place, entry in pairs if sure else ():
            entry.own = True
            over[place] = entry.over
    return over


def _dtype(call: RecordedCall) -> str | None:
    return next(iter(call.input_types), None)


def _is_at(call: Call, entry: _Entry, at: Moment) -> bool:
    """Whether a call of the ring and an entry of the recorder were made at the same time."""
    return call.age_s is not None and abs(entry.age_s(at) - call.age_s) < APART_S
