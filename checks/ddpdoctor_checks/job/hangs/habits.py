"""Whether a rank waits in the call that always followed the same calls before: which side of two has left its way.

A rank that passes over a backward, a branch or a turn of a loop waits in a call of its usual step that never came
there; its peers wait in the one that always came next.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.evidence.standstill import Call
from ddpdoctor_checks.common.frames import user_line
from ddpdoctor_checks.job.hangs.standing import Place

LEAST, ENOUGH = 3, 8
"""Calls that must have led there before in the same order, and so many that more say nothing more."""


def find_leaving(sides: Sequence[Sequence[Place]]) -> list[Sequence[Place]]:
    """Return the one side that has left its way, where all others are on theirs; nothing else."""
    told = [leaves_habit(side[0]) for side in sides]
    return (
        [sides[told.index(True)]] if told.count(True) == 1 and told.count(False) == len(told) - 1 > 0 else []
    )


def leaves_habit(place: Place) -> bool | None:
    """Whether a rank waits in another call than those that followed the same calls before.

    None where that cannot be told: also of a call that is none of the last turn, such as a first evaluation.
    """
    recent = list(place.stand.recent)
    if place.call is None or not recent:
        return None
    if (recent[-1].series, recent[-1].ordinal) != (place.call.series, place.call.ordinal):
        recent.append(place.call)
    keys = [_tell(call) for call in recent]
    now, before = keys[-1], keys[:-1]
    lengths = {end: _count_same(before, end) for end in range(1, len(before))}
    enough = min(max(lengths.values(), default=0), ENOUGH)
    if enough < LEAST:
        return None
    ends = [end for end, length in lengths.items() if length >= enough]
    if now in {keys[end] for end in ends}:
        return False
    return True if now in before[ends[-1] :] else None


def _count_same(keys: Sequence[object], end: int) -> int:
    """Return how many calls before a place are the same as the last ones of all."""
    count = 0
    while count < end and keys[end - 1 - count] == keys[-1 - count]:
        count += 1
    return count


def _tell(call: Call) -> tuple[object, ...]:
    line = user_line(call.frames)
    return call.op, call.group, call.shape, (line.file, line.line) if line is not None else None
