"""What was told of a job that stands still, and whether it still holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpdoctor.evidence.standstill import Standstill
from ddpdoctor.watch.live.pace import Glance

Marks = dict[int, tuple[int, int]]
"""Rank -> how many calls it had begun, and when the last had begun or ended: what changes when it moves."""


def mark(glances: Sequence[Glance]) -> Marks:
    """Return how far ranks are."""
    return {glance.rank: (glance.count, glance.changed_ns) for glance in glances}


def went_on(marks: Marks, glances: Sequence[Glance]) -> bool:
    """Whether ranks have moved otherwise than by giving up."""
    now = mark([glance for glance in glances if not glance.gave_up])
    return any(rank in now and now[rank] != each for rank, each in marks.items())


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A look of which something was told."""

    look: Standstill
    marks: Marks
    """How far the ranks of this node had come."""
    suspects: frozenset[int]
    """Those of them that are at fault; none where nobody is, or ranks of other nodes."""

    def has_moved(self, glances: Sequence[Glance]) -> bool:
        """Whether those that are suspected have moved, or have left while others still waited.

        Where only the others have moved it is as it was: without them these can but give up, at the time limit of
        their group, after which the launcher ends all. So it is where nobody is suspected, and calls have raised.
        """
        if not self.suspects:
            return went_on(self.marks, glances) or not self.marks
        marks = mark(glances)
        moved = {rank for rank, each in self.marks.items() if marks.get(rank) != each}
        if moved & self.suspects:
            return True
        dead = {glance.rank for glance in glances if not glance.alive}
        were_gone = {stand.rank for stand in self.look.stands if not stand.alive}
        gave_up = bool(moved) or bool(dead - self.suspects - were_gone)
        return bool(dead & self.suspects) and not gave_up
