"""A hang: what each rank called last, in order and not to scale, and the point from which they do different things."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.standstill import Call, Stand
from ddpdoctor.report.html.call_lanes import own_frame
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.html.pictures.marks import SMALL, WIDE, Figure, Key, Sheet, cut, name_lane
from ddpdoctor.report.html.svg import Drawing
from ddpdoctor.report.stacktree import is_foreign, is_in_backward
from ddpdoctor.report.words import count, format_ranks, format_seconds

LANES_SHOWN = 16
"""Lanes; of more ranks, those that do the same are one lane."""
BEFORE, AFTER = 3, 3
"""Calls that are shown of what all ranks have done, and of what each does after it; on a phone fewer of the former."""
GAP, TOP = 6.0, 22.0
SHORT = {"DistributedDataParallel.forward": "DDP forward", "DistributedDataParallel": "DDP()"}
"""Names that are longer than a box is wide."""


@dataclass(frozen=True, slots=True)
class _Box:
    """One call of one rank, or where it is now."""

    key: tuple[object, ...]
    """Equal on ranks that make the same call."""
    name: str
    place: str
    state: str = "past"
    """past, waits, away (alive, in no collective), gone or more (boxes that are not shown)."""
    tip: str = ""


@dataclass(frozen=True, slots=True)
class _Lane:
    ranks: tuple[int, ...]
    boxes: tuple[_Box, ...]
    blamed: bool


_Row = tuple[_Lane, tuple[_Box, ...], tuple[_Box, ...]]
"""A lane, its boxes up to the call that all have made, and those after it."""


def draw_lanes(stands: Sequence[Stand], blamed: RankSet, caps: Caps) -> Figure | None:
    """Draw the last calls of the ranks; None where no rank is known to do anything.

    Args:
        stands: of the ranks.
        blamed: ranks that the verdict names; where it names all, none stands out.
        caps: gets what is not shown.
    """
    all_blamed = all(stand.rank in blamed for stand in stands)
    lanes = _fold(stands, RankSet() if all_blamed else blamed)
    if not any(lane.boxes for lane in lanes):
        return None
    shared = _last_shared(lanes)
    rows = [(lane, *_split(lane.boxes, shared)) for lane in caps.take(lanes, LANES_SHOWN, "lanes of ranks")]
    parts = any(before for _, before, _ in rows) and any(after for _, _, after in rows)
    return Figure(
        "Last calls of the ranks",
        _draw(rows, WIDE, parts),
        _keys(rows),
        "In program order, not to scale.",
        small=_draw([_shorten(row) for row in rows], SMALL, parts),
    )


def _shorten(row: _Row) -> _Row:
    """Return as much of a lane as a phone shows: the last shared call only where no rank has done more, and the end."""
    lane, before, after = row
    return (lane, (), after[-2:]) if after else (lane, before[-2:], ())


def _draw(rows: Sequence[_Row], sheet: Sheet, parts: bool) -> Markup:
    left = max(len(before) for _, before, _ in rows)
    right = max(len(after) for _, _, after in rows)
    slot = min(230.0, (sheet.width - sheet.left) / max(1, left + right))
    tall = len(rows) <= 6
    lane_height = 44.0 if tall else 24.0
    top = TOP if parts else 4.0
    height = top + lane_height * len(rows) + 4
    drawing = Drawing(
        sheet.width + 2, height, f"swim {sheet.ident}", ident=f"lanes-{sheet.ident}",
        title="Last collectives of each rank, up to the hang",
        description=_describe(rows),
    )  # fmt: skip
    for number, (lane, before, after) in enumerate(rows):
        y = top + lane_height * number
        css = "lane-name is-bad" if lane.blamed else "lane-name"
        drawing.text(sheet.left - 10, y + lane_height / 2 + 2, name_lane(lane.ranks, sheet), css, "end")
        drawing.rect(sheet.left, y + 2, slot * (left + right), lane_height - 6, "lane-back")
        for offset, boxes in ((left - len(before), before), (left, after)):
            for place, box in enumerate(boxes, start=offset):
                _draw_box(
                    drawing, sheet.left + slot * place, y + 2, slot - GAP, lane_height - 6, box, lane, tall
                )
    if parts:
        x = sheet.left + slot * left - GAP / 2
        drawing.line(x, TOP - 6, x, height, "parting")
        anchor = "start" if right * slot > 110 else "end"
        drawing.text(x, 11, "ranks diverge here", "parting-name", anchor)
    return drawing.markup()


def _keys(rows: Sequence[_Row]) -> tuple[Key, ...]:
    states = {_style(box, lane) for lane, before, after in rows for box in (*before, *after)}
    keys = (
        Key("b-bad", "root-cause rank"),
        Key("b-past", "returned"),
        Key("b-waits", "blocked in this call"),
        Key("b-away", "in no collective"),
        Key("b-gone", "process has exited"),
    )
    return tuple(key for key in keys if key.css.removeprefix("b-") in states)


def _style(box: _Box, lane: _Lane) -> str:
    """Return the state that a box is drawn by: where a root-cause rank is now stands out."""
    return "bad" if lane.blamed and box.state in ("waits", "away", "gone") else box.state


def _fold(stands: Sequence[Stand], blamed: RankSet) -> list[_Lane]:
    lanes = [_Lane((stand.rank,), _list_boxes(stand), stand.rank in blamed) for stand in stands]
    lanes.sort(key=lambda lane: lane.ranks)
    if len(lanes) <= LANES_SHOWN:
        return lanes
    groups: dict[tuple[object, ...], list[_Lane]] = {}
    for lane in lanes:
        key = lane.blamed, tuple((box.key, box.state) for box in lane.boxes[-(BEFORE + AFTER) :])
        groups.setdefault(key, []).append(lane)
    joined = [
        _Lane(tuple(lane.ranks[0] for lane in group), group[0].boxes, group[0].blamed)
        for group in groups.values()
    ]
    return sorted(joined, key=lambda lane: (not lane.blamed, -len(lane.ranks), lane.ranks))


def _list_boxes(stand: Stand) -> tuple[_Box, ...]:
    """Return the calls of a rank in order, and last where it is now."""
    current = stand.call
    past = [call for call in stand.recent if current is None or not _same(call, current)]
    boxes = [_make_box(call, "past") for call in past]
    if not stand.alive:
        how = f"signal {stand.signal}" if stand.signal is not None else f"exit code {stand.exit_code}"
        how = "gone" if stand.signal is None and stand.exit_code is None else how
        own = own_frame(stand.exit_frames)
        place = f"{own.file}:{own.line}" if own is not None else ""
        boxes.append(_Box(("gone", how), how, place, "gone", f"the process has exited: {how}"))
    elif current is not None:
        boxes.append(_make_box(current, "waits"))
    elif stand.frames:
        own = next((frame for frame in stand.frames if not is_foreign(frame)), stand.frames[0])
        backward = is_in_backward(stand)
        name = "backward pass" if backward else own.function
        place = f"{own.file}:{own.line}"
        state = "waits" if backward else "away"
        boxes.append(_Box(("now", name, place), name, place, state, f"now in {name} at {place}"))
    return tuple(boxes)


def _same(call: Call, current: Call) -> bool:
    return (call.op, call.series, call.ordinal, call.age_s) == (
        current.op,
        current.series,
        current.ordinal,
        current.age_s,
    )


def _make_box(call: Call, state: str) -> _Box:
    own = own_frame(call.frames)
    place = f"{own.file}:{own.line}" if own is not None else ""
    name = SHORT.get(call.op, call.op) + (f" #{call.ordinal}" if call.ordinal else "")
    what = f"{call.op} #{call.ordinal}" if call.ordinal else call.op
    took = "has not returned" if state == "waits" else f"took {format_seconds(call.took_s)}"
    shape = f" {list(call.shape)} {call.dtype or ''}".rstrip() if call.shape is not None else ""
    key = (call.series, call.ordinal, call.op, call.shape, call.dtype, call.peer)
    return _Box(key, name, place, state, f"{what}{shape}{f' at {place}' if place else ''}: {took}")


def _last_shared(lanes: Sequence[_Lane]) -> tuple[object, ...] | None:
    """Return the last call that all ranks have made; None where none is known."""
    keys = [[box.key for box in lane.boxes if box.state in ("past", "waits")] for lane in lanes if lane.boxes]
    if not keys:
        return None
    everywhere = set(keys[0]).intersection(*keys[1:])
    return next((key for key in reversed(keys[0]) if key in everywhere and key[0] != "now"), None)


def _split(
    boxes: tuple[_Box, ...], shared: tuple[object, ...] | None
) -> tuple[tuple[_Box, ...], tuple[_Box, ...]]:
    """Return the last boxes up to the call that all have made, and those after it, shortened in their middle."""
    places = [place for place, box in enumerate(boxes) if box.key == shared]
    end = places[-1] + 1 if places else 0
    before, after = boxes[max(0, end - BEFORE) : end], boxes[end:]
    if len(after) > AFTER:
        left_out = count(len(after) - AFTER + 1, "more call")
        after = (after[0], _Box(("more",), f"… {left_out}", "", "more", left_out), *after[-(AFTER - 2) :])
    return before, after


def _draw_box(
    drawing: Drawing,
    x: float,
    y: float,
    width: float,
    height: float,
    box: _Box,
    lane: _Lane,
    tall: bool,
) -> None:
    css = _style(box, lane)
    tip = f"{format_ranks(RankSet(lane.ranks))}: {box.tip}"
    drawing.rect(x, y, width, height, f"box b-{css}", tip)
    two = tall and bool(box.place)
    drawing.text(x + 7, y + (height / 2 + (-3 if two else 4)), cut(box.name, width - 12), f"box-name n-{css}")
    if two:
        place = box.place if len(box.place) * 6.2 < width - 12 else box.place.rpartition("/")[2]
        drawing.text(x + 7, y + height / 2 + 12, cut(place, width - 12), f"box-place n-{css}")


def _describe(rows: Sequence[_Row]) -> str:
    """Say the same in words, for those who cannot see it."""
    words = []
    for lane, before, after in rows:
        boxes = (*before, *after)
        if boxes:
            words.append(f"{format_ranks(RankSet(lane.ranks))}: {boxes[-1].tip}")
    return "; ".join(words)
