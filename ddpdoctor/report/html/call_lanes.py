"""The last calls of ranks in pictures: a time line with a lane for each rank, and their sequences side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.standstill import Call, Stand
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.html.svg import Drawing
from ddpdoctor.report.words import count, format_ranks, format_seconds

LANES_SHOWN = 16
"""Lanes of the time line; of more ranks those of equal calls are one lane."""
COLUMNS_SHOWN = 6
"""Sequences of calls side by side."""
ROWS_SHOWN = 14
"""Calls of one group in the table, the last ones."""
SPAN_S = 30.0
"""Seconds before the look that the time line shows at most."""
OPS = 5
"""Colours for operations; further ones share them."""


@dataclass(frozen=True, slots=True)
class RowView:
    """One number of a group's calls, over the columns."""

    ordinal: str
    cells: tuple[tuple[str, str, str], ...]
    """Call, place and class (same, odd, none) for each column."""
    differs: bool
    first: bool
    """Whether it is the first that differs."""


@dataclass(frozen=True, slots=True)
class TableView:
    """The last calls of one group side by side."""

    group: str
    columns: tuple[str, ...]
    rows: tuple[RowView, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The calls of ranks over time."""

    drawing: Markup | None
    legend: tuple[tuple[str, int], ...]
    """Operation and its colour."""
    span: str


def draw_timeline(stands: Sequence[Stand], caps: Caps, end: str = "snapshot") -> Timeline:
    """Draw the calls before a moment; of many ranks those of equal calls are one lane.

    Args:
        stands: of the ranks.
        caps: gets what is left out.
        end: what that moment is called.
    """
    colours = _choose_colours(stands)
    span = min(SPAN_S, max((call.age_s or 0.0 for stand in stands for call in stand.recent), default=0.0))
    drawing = _draw(_fold_lanes(stands), colours, span, caps, end)
    return Timeline(drawing, tuple(colours.items()), format_seconds(span))


def own_frame(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame whose source was read: only the user's own lines are."""
    return next((frame for frame in frames if frame.source is not None), frames[0] if frames else None)


def spot_of(frames: Sequence[Frame]) -> tuple[str, int] | None:
    """Return file and line of that frame."""
    own = own_frame(frames)
    return (own.file, own.line) if own is not None else None


def name_call(call: Call | None) -> str:
    """Return ``all_reduce #128``."""
    if call is None:
        return ""
    return f"{call.op} #{call.ordinal}" if call.ordinal else call.op  # read from a stack


def _choose_colours(stands: Sequence[Stand]) -> dict[str, int]:
    ops = Counter(call.op for stand in stands for call in stand.recent)
    return {op: number % OPS for number, (op, _) in enumerate(ops.most_common(OPS))}


@dataclass(frozen=True, slots=True)
class _Lane:
    label: str
    stand: Stand
    size: int = 1

    @property
    def name(self) -> str:
        """What stands beside it, where there is little room."""
        return self.label if len(self.label) <= LABEL else count(self.size, "rank")


def _fold_lanes(stands: Sequence[Stand]) -> list[_Lane]:
    """One lane a rank; of many ranks, one for those that made the same calls and stand in the same one."""
    if len(stands) <= LANES_SHOWN:
        return [_Lane(f"rank {stand.rank}", stand) for stand in stands]
    groups: dict[tuple[object, ...], list[Stand]] = {}
    for stand in stands:
        calls = tuple((call.op, call.ordinal, spot_of(call.frames)) for call in stand.recent[-ROWS_SHOWN:])
        groups.setdefault((stand.alive, name_call(stand.call), calls), []).append(stand)
    ordered = sorted(groups.values(), key=lambda group: (-len(group), group[0].rank))
    return [
        _Lane(format_ranks(RankSet(each.rank for each in group)), group[0], len(group)) for group in ordered
    ]


LABEL = 15
"""Characters that fit beside a lane."""
OPEN_WIDTH = 5.0
"""Least width of a bar that has not returned: it is what one looks for."""
LEFT, RIGHT, LANE, TOP = 120.0, 900.0, 22.0, 8.0


def _draw(
    lanes: Sequence[_Lane], colours: dict[str, int], span: float, caps: Caps, moment: str
) -> Markup | None:
    """Draw each lane's calls over the last seconds; what is open reaches to the look."""
    if span <= 0:
        return None
    shown = caps.take(lanes, LANES_SHOWN, "lanes of the timeline")
    height = TOP + LANE * len(shown) + 26
    drawing = Drawing(
        RIGHT + 10, height, "lanes", ident="lanes",
        title=f"Collectives of the ranks before the {moment}",
        description=(
            "One lane per rank or per group of ranks with equal calls; one bar per call, from start to "
            "return. A red bar had not returned."
        ),
    )  # fmt: skip

    def place(age_s: float) -> float:
        return RIGHT - (RIGHT - LEFT) * min(age_s, span) / span

    for number, lane in enumerate(shown):
        y = TOP + LANE * number
        drawing.text(LEFT - 8, y + 13, lane.name, "lane-name", "end")
        drawing.rect(LEFT, y + 3, RIGHT - LEFT, LANE - 8, "lane-back")
        for call in lane.stand.recent:
            age = call.age_s or 0.0
            if age - (call.took_s or 0.0) > span and call.returned:
                continue
            is_open = _is_open(call, lane.stand)
            end = 0.0 if is_open else max(0.0, age - (call.took_s or 0.0))
            x = place(age)
            width = max(place(end) - x, OPEN_WIDTH if is_open else 1.5)
            x = min(x, RIGHT - width)
            css = "op-open" if is_open else f"op-{colours.get(call.op, OPS)}"
            what = "not returned" if is_open else f"took {format_seconds(call.took_s)}"
            drawing.rect(
                x, y + 3, width, LANE - 8, css, f"{lane.label}: {name_call(call)}{_where(call)}, {what}"
            )
        if not lane.stand.alive:
            drawing.text(RIGHT, y + 13, "gone", "lane-gone", "end")
    bottom = TOP + LANE * len(shown) + 14
    for share in (1.0, 0.5, 0.0):
        text = moment if share == 0.0 else f"-{format_seconds(span * share)}"
        drawing.text(place(span * share), bottom, text, "lane-tick", "start" if share == 1.0 else "end")
    return drawing.markup()


def _is_open(call: Call, stand: Stand) -> bool:
    """Whether a rank stands in one of its last calls, which are kept with fewer frames than the one it stands in."""
    last = stand.call
    return last is not None and (call.op, call.series, call.ordinal, call.age_s) == (
        last.op,
        last.series,
        last.ordinal,
        last.age_s,
    )


def _where(call: Call) -> str:
    own = own_frame(call.frames)
    return f" at {own.file}:{own.line}" if own is not None else ""


def make_table(stands: Sequence[Stand], caps: Caps) -> TableView | None:
    """The last calls of the group in which ranks stand, the first number marked at which they differ."""
    groups = Counter(stand.call.group for stand in stands if stand.call is not None and stand.call.collective)
    if not groups:
        groups = Counter(call.group for stand in stands for call in stand.recent[-1:] if call.collective)
    if not groups:
        return None
    group = groups.most_common(1)[0][0]
    sequences: dict[int, dict[int, Call]] = {}
    for stand in stands:
        calls = {call.ordinal: call for call in stand.recent if call.group == group and call.collective}
        if calls:
            sequences[stand.rank] = calls
    if not sequences:
        return None
    last = max(max(calls) for calls in sequences.values())
    first = max(1, last - ROWS_SHOWN + 1, max(min(calls) for calls in sequences.values()))
    first = min(first, last)
    folded: dict[tuple[object, ...], list[int]] = {}
    for rank, calls in sequences.items():
        key = tuple(_cell(calls.get(number))[:2] for number in range(first, last + 1))
        folded.setdefault(key, []).append(rank)
    columns = sorted(folded.values(), key=lambda ranks: (-len(ranks), ranks[0]))
    shown = caps.take(columns, COLUMNS_SHOWN, "sequences of calls side by side")
    rows: list[RowView] = []
    marked = False
    for number in range(first, last + 1):
        cells = [_cell(sequences[ranks[0]].get(number)) for ranks in shown]
        differs = len({_cell(sequences[ranks[0]].get(number))[:2] for ranks in columns}) > 1
        usual = cells[0][:2]
        rows.append(
            RowView(
                f"#{number}",
                tuple(
                    (call, spot, kind if (call, spot) == usual or not call else "odd")
                    for call, spot, kind in cells
                ),
                differs,
                differs and not marked,
            )
        )
        marked = marked or differs
    names = tuple(format_ranks(RankSet(ranks)) for ranks in shown)
    members = next(
        (call.members for calls in sequences.values() for call in calls.values() if call.members), None
    )
    title = f"group {group}" + (f" of {count(len(members), 'rank')}" if members else "")
    return TableView(title, names, tuple(rows))


def _cell(call: Call | None) -> tuple[str, str, str]:
    if call is None:
        return "", "", "none"
    shape = f" {list(call.shape)}" if call.shape is not None else ""
    dtype = f" {call.dtype}" if call.dtype else ""
    root = f" root {call.peer}" if call.peer is not None else ""
    return f"{call.op}{shape}{dtype}{root}", _where(call).removeprefix(" at "), "same"
