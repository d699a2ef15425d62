"""A hang: one square for each rank, by what it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.standstill import Stand
from ddpdoctor.report.html.pictures.marks import Figure, Key
from ddpdoctor.report.html.svg import Drawing
from ddpdoctor.report.stacktree import is_in_backward

STATES = {
    "bad": "root cause",
    "waits": "blocked in a collective",
    "away": "in no collective",
    "gone": "exited",
    "unseen": "not sampled",
}
SIZES = ((16, 30.0, 16), (64, 26.0, 16), (256, 15.0, 32), (1024, 8.0, 64), (1 << 30, 4.0, 128))
"""Up to so many ranks: the side of a square, and squares in a row."""
NUMBERED = 20.0
"""Side from which on a rank's number fits its square."""


def draw_states(stands: Sequence[Stand], blamed: RankSet, size: int) -> Figure:
    """Draw the squares of all ranks; those of which nothing was seen are empty.

    Args:
        stands: of the ranks that were seen.
        blamed: ranks that the verdict names; where it names all, none stands out.
        size: ranks of the job.
    """
    if all(stand.rank in blamed for stand in stands):
        blamed = RankSet()
    states = {stand.rank: _state(stand, stand.rank in blamed) for stand in stands}
    size = max(size, *(rank + 1 for rank in states))
    side, in_row = next((side, row) for most, side, row in SIZES if size <= most)
    gap = 3.0 if side >= NUMBERED else 1.0
    columns = min(size, in_row)
    rows = -(-size // in_row)
    counted = Counter(states.get(rank, "unseen") for rank in range(size))
    words = ", ".join(f"{counted[state]:,} {text}" for state, text in STATES.items() if counted[state])
    drawing = Drawing(
        columns * (side + gap), rows * (side + gap), f"squares sq-{in_row}", ident="states",
        title="Rank states", description=words, natural=True,
    )  # fmt: skip
    for rank in range(size):
        state = states.get(rank, "unseen")
        x, y = (rank % in_row) * (side + gap), (rank // in_row) * (side + gap)
        numbered = side >= NUMBERED
        drawing.rect(x, y, side, side, f"b-{state}", f"rank {rank}: {STATES[state]}" if size <= 256 else None)
        if numbered:
            drawing.text(x + side / 2, y + side / 2 + 4, str(rank), f"box-name n-{state}", "middle")
    keys = tuple(
        Key(f"b-{state}", f"{counted[state]:,} {text}") for state, text in STATES.items() if counted[state]
    )
    return Figure("Rank states", drawing.markup(), keys, narrow=True)


def _state(stand: Stand, blamed: bool) -> str:
    if blamed:
        return "bad"
    if not stand.alive:
        return "gone"
    return "waits" if stand.call is not None or is_in_backward(stand) else "away"
