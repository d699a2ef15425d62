"""Who made which call at one sequence number: the sides of a difference between ranks, and the smaller part of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor_checks.job.calls.sequences import Essences, GroupCalls, Line

AHEAD = 64
"""Calls behind a difference that are looked at to see whether a rank left one out, made one more, or swapped two."""


@dataclass(frozen=True, slots=True)
class Side:
    """What some ranks did at one sequence number."""

    ranks: RankSet
    call: int | None
    """Place in `CallLog.calls`; None: they made none."""
    site: Frame | None = None
    last: int | None = None
    """Place in `CallLog.calls` of the call before, for ranks that made none; None where there was none."""
    last_number: int = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place at which the ranks of a group are not in step."""

    kind: str
    """mismatch, apart (different calls of the program, one of which some ranks pass by), skipped, extra, swapped,
    missing (some never called it), absent (some left no dump), unstarted (the
    devices of some have not come to it) or together (all are in the same call)."""
    group: GroupCalls
    number: int
    """Sequence number."""
    sides: tuple[Side, ...]
    """The largest first."""
    culprits: RankSet = field(default_factory=RankSet)
    """The smaller part; empty where it cannot be told."""
    sure: str = "high"
    behind: RankSet = field(default_factory=RankSet)
    """Ranks that never came to the call."""
    waiting: RankSet = field(default_factory=RankSet)
    """Ranks that are in it."""


def vote(
    lines: Sequence[Line], number: int, key: Callable[[tuple[int, ...]], Hashable], essences: Essences
) -> list[tuple[Side, list[Line]]]:
    """Return who made which call at a number, the most ranks first."""
    parts: dict[Hashable, list[Line]] = {}
    for line in lines:
        calls = line.at(number)
        if calls:
            parts.setdefault(key(calls), []).append(line)
    ordered = sorted(parts.values(), key=lambda members: (-len(members), members[0].rank))
    found = []
    for members in ordered:
        calls = members[0].at(number)
        ranks = RankSet(line.rank for line in members)
        found.append((Side(ranks, calls[0], essences.site(calls)), members))
    return found


def minority(sides: Sequence[Side], group: GroupCalls) -> RankSet:
    """Return the ranks outside of the largest side, where that is more than half of the group; else nobody."""
    if 2 * len(sides[0].ranks) <= len(group.members):
        return RankSet()
    return RankSet().union(*(side.ranks for side in sides[1:]))


def place_of(site: Frame | None) -> tuple[str, int] | None:
    """Return file and line of a frame, by which lines are compared."""
    return (site.file, site.line) if site is not None else None
