"""The stacks of all ranks as one tree: common callers once, and at each fork who is where and who is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.standstill import Stand
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.stacktree import Branch, build_tree, is_foreign, name_place, walk
from ddpdoctor.report.words import count, format_ranks

FORKS_SHOWN, ROWS_SHOWN = 6, 60
"""Branches of a fork, and rows."""
DEEPEST = 8
"""Steps of indentation: report.css has a class for each."""


@dataclass(frozen=True, slots=True)
class TreeRow:
    """One place of the tree."""

    here: str
    """Ranks that stand there or below; empty where they are those of the row above."""
    missing: str
    """At a fork, ranks that are elsewhere."""
    depth: int
    function: str
    place: str
    source: str | None
    own: bool
    """Whether it is the user's own code."""


def view_tree(stands: Sequence[Stand], caps: Caps) -> tuple[TreeRow, ...]:
    """Return the rows of the tree from the outermost place on; none where no stack was read."""
    tree = build_tree(stands)
    rows = []
    before: RankSet | None = None
    for depth, branch, missing in walk(tree, FORKS_SHOWN):
        rows.append(_row(branch, missing, min(depth, DEEPEST), same=branch.ranks == before))
        before = branch.ranks if branch.frame is not None else None
    return caps.take(rows, ROWS_SHOWN, "places of the tree of stacks")


def _row(branch: Branch, missing: RankSet, depth: int, *, same: bool) -> TreeRow:
    here = "" if same and not missing else format_ranks(branch.ranks)
    frame = branch.frame
    if frame is None:
        more = count(len(branch.children), "more place")
        return TreeRow(here, "", depth, f"… {more}", "", None, False)
    elsewhere = format_ranks(missing) if missing else ""
    own = not is_foreign(frame)
    return TreeRow(here, elsewhere, depth, frame.function, name_place(frame), frame.source, own)
