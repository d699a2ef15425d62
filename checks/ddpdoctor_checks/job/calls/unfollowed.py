"""Ranks that alone skipped a backward pass: their collectives are paired with later ones of the others since."""

from __future__ import annotations

from dataclasses import dataclass

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.syncs import Unfollowed
from ddpdoctor.judge import Fix, Where
from ddpdoctor_checks.common.frames import tell_line, user_line
from ddpdoctor_checks.common.places import in_frame
from ddpdoctor_checks.common.wording import choose_form, name_set

FIX = Fix(
    "skip a batch on all ranks or on none: decide collectively, before the backward pass",
    code="bad = torch.tensor(float(failed))\ndist.all_reduce(bad)\nif bad == 0:   # the same on every rank\n"
    "    loss.backward()",
)


@dataclass(frozen=True, slots=True)
class Skipped:
    """Some ranks of a job, and the forward passes that no backward pass followed."""

    ranks: RankSet
    row: Unfollowed

    def __str__(self) -> str:
        line = user_line(self.row.frames)
        told = f"{name_set(self.ranks)} ran a forward pass{tell_line(line)} without its backward pass"
        handler = self.row.handler
        if handler is not None:
            told += f" (the `except` at {handler.file}:{handler.line} continues after an exception)"
        return told

    @property
    def told_since(self) -> str:
        """Its sentence, with what follows from it."""
        its = choose_form(len(self.ranks), "its", "their")
        return f"{self}. Since then {its} collectives are paired with other ones"

    @property
    def places(self) -> tuple[Where, ...]:
        """The `except` first, where one is known, then the forward pass."""
        line = user_line(self.row.frames)
        found = [] if self.row.handler is None else [in_frame(self.row.handler, self.ranks, "culprit")]
        return (*found, *([] if line is None else [in_frame(line, self.ranks, "culprit")]))


def find_skipped_backward(evidence: Evidence) -> Skipped | None:
    """Return the ranks that alone ran forward passes without a backward pass, from one line; None elsewhere."""
    rows = [row for node in evidence.training for row in node.syncs.unfollowed]
    if not rows or len({(row.wrapper, row.frames) for row in rows}) > 1:
        return None
    ranks = RankSet().union(*(row.ranks for row in rows))
    known = RankSet().union(*(node.ranks for node in evidence.training))
    return Skipped(ranks, rows[0]) if len(ranks) < len(known) else None
