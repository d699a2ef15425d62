"""Whether a rank's last call is the one that always followed the same calls before: which side of two has left its way.

A rank that passes over a backward, a branch or a turn of a loop comes to a call of its usual step that never came
there; its peers come to the one that always came next.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

LEAST, ENOUGH = 3, 8
"""Calls that must have led there before in the same order, and so many that more say nothing more."""
LATEST = 64
"""Calls of a rank that are looked through."""


def leaves_habit(calls: Sequence[Hashable]) -> bool | None:
    """Whether the last call is another than those that followed the same calls before.

    None where that cannot be told: also of a call that is none of the last turn, such as a first evaluation.
    """
    if not calls:
        return None
    now, before = calls[-1], calls[:-1]
    lengths = {end: _count_same(before, end) for end in range(1, len(before))}
    enough = min(max(lengths.values(), default=0), ENOUGH)
    if enough < LEAST:
        return None
    ends = [end for end, length in lengths.items() if length >= enough]
    if now in {calls[end] for end in ends}:
        return False
    return True if now in before[ends[-1] :] else None


def find_leaving(sides: Sequence[Sequence[Hashable]]) -> int | None:
    """Return the place of the one side that has left its way, where all others are on theirs; None else."""
    told = [leaves_habit(calls) for calls in sides]
    alone = told.count(True) == 1 and told.count(False) == len(told) - 1 > 0
    return told.index(True) if alone else None


def _count_same(calls: Sequence[Hashable], end: int) -> int:
    """Return how many calls before a place are the same as the last ones of all."""
    count = 0
    while count < end and calls[end - 1 - count] == calls[-1 - count]:
        count += 1
    return count
