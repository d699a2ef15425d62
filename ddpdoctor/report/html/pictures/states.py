"""A hang: one square for each rank, by what it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

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
EACH = 256
"""Up to so many ranks each has a square; of more, neighbors in one state are one bar."""
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
    for first, last, state in _list_runs(states, size, in_row if size > EACH else 1):
        x, y = (first % in_row) * (side + gap), (first // in_row) * (side + gap)
        wide = side + (last - first) * (side + gap)
        tip = f"rank {first}: {STATES[state]}" if size <= EACH else None
        drawing.rect(x, y, wide, side, f"b-{state}", tip)
        if side >= NUMBERED:
            drawing.text(x + side / 2, y + side / 2 + 4, str(first), f"box-name n-{state}", "middle")
    keys = tuple(
        Key(f"b-{state}", f"{counted[state]:,} {text}") for state, text in STATES.items() if counted[state]
    )
    return Figure("Rank states", drawing.markup(), keys, narrow=True)


def _list_runs(states: Mapping[int, str], size: int, longest: int) -> Iterator[tuple[int, int, str]]:
    """Return first rank, last rank and state of neighbors in one row that are in one state."""
    for start in range(0, size, longest):
        row = range(start, min(start + longest, size))
        for state, group in groupby(row, key=lambda rank: states.get(rank, "unseen")):
            ranks = list(group)
            yield ranks[0], ranks[-1], state


def _state(stand: Stand, blamed: bool) -> str:
    if blamed:
        return "bad"
    if not stand.alive:
        return "gone"
    return "waits" if stand.call is not None or is_in_backward(stand) else "away"
