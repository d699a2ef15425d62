"""An incident: what the logs of all nodes date, on one axis, a lane for each host."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.html.pictures.marks import SMALL, WIDE, Figure, Key, Sheet, cut
from ddpdoctor.report.html.svg import Drawing
from ddpdoctor.report.model import Report
from ddpdoctor.report.timeline import TimelineRow, choose_rows, format_gap, list_rows

EVENTS_SHOWN, HOSTS_SHOWN = 14, 12
"""Numbered events, the cause and what speaks for it first; lanes."""
TOP, ROW, RADIUS = 8.0, 24.0, 9.0
LINEAR_S = 120.0
"""A longer time is drawn by its logarithm on both sides of zero: minutes of waiting would hide seconds that matter."""
TICKS = (0, 1, 10, 60, 600, 3600, 36000, 360000)
KINDS = {"cause": "b-bad", "consequence": "b-waits", "call": "b-past", "progress": "b-past", "exit": "b-gone"}


@dataclass(frozen=True, slots=True)
class AxisView:
    """The drawing, and the events that its numbers stand for."""

    figure: Figure
    events: tuple[tuple[int, str, TimelineRow], ...]
    """Number, class of its colour, and the event."""
    more: int
    """Events that are in the table only."""


def draw_axis(report: Report, caps: Caps) -> AxisView | None:
    """Draw the dated events of logs and recorders; None where hardly anything is dated."""
    rows = list_rows(report)
    if not rows:
        return None
    shown = choose_rows(rows, EVENTS_SHOWN)
    hosts = caps.take(list(dict.fromkeys(row.host or "job" for row in shown)), HOSTS_SHOWN, "hosts of events")
    shown = [row for row in shown if (row.host or "job") in hosts]
    far = max(abs(row.seconds) for row in shown) > LINEAR_S
    note = "Zero is the root cause, or else the first event; node clocks may differ."
    note += " Seconds near zero are drawn wider than minutes away from it." if far else ""
    keys = (Key("b-bad", "cause"), Key("b-waits", "consequence"), Key("b-past", "last sign of progress"))
    figure = Figure(
        "Events of all nodes",
        _draw(shown, hosts, WIDE, far),
        keys,
        note,
        small=_draw(shown, hosts, SMALL, far),
    )
    events = tuple((n, KINDS.get(row.kind, "b-past"), row) for n, row in enumerate(shown, start=1))
    return AxisView(figure, events, len(rows) - len(shown))


def _draw(shown: Sequence[TimelineRow], hosts: Sequence[str], sheet: Sheet, far: bool) -> Markup:
    low, high = min(row.seconds for row in shown), max(row.seconds for row in shown)
    first = _scale(low, far)
    span = max(_scale(high, far) - first, 1e-9)
    left, width = sheet.left, sheet.width

    def place(seconds: float) -> float:
        inset = 2 * RADIUS
        return left + inset + (width - left - 2 * inset) * (_scale(seconds, far) - first) / span

    numbers = {id(row): number for number, row in enumerate(shown, start=1)}
    lanes = {host: _stack([row for row in shown if (row.host or "job") == host], place) for host in hosts}
    rows_of = {host: 1 + max(level for _, level in lane) for host, lane in lanes.items()}
    height = TOP + sum(ROW * number + 10 for number in rows_of.values()) + 22
    drawing = Drawing(
        width, height, f"swim {sheet.ident}", ident=f"axis-{sheet.ident}",
        title="Events of all nodes on one time axis",
        description="; ".join(f"{row.gap} {row.who} {row.text}".strip() for row in shown),
    )  # fmt: skip
    y = TOP
    for host in hosts:
        tall = ROW * rows_of[host]
        drawing.text(left - 10, y + tall / 2 + 4, cut(host, left - 12), "lane-name", "end")
        drawing.rect(left, y, width - left, tall, "lane-back")
        y += tall + 10
    if low <= 0 <= high:
        drawing.line(place(0), TOP, place(0), height - 20, "parting")
    y = TOP
    for host in hosts:
        for row, level in lanes[host]:
            x, middle = place(row.seconds), y + ROW * level + ROW / 2
            css = KINDS.get(row.kind, "b-past")
            tip = f"{row.at} {row.gap} {row.who}: {row.text}"
            drawing.circle(x, middle, RADIUS, f"spot {css}", tip)
            number = str(numbers[id(row)])
            drawing.text(x, middle + 3.5, number, f"spot-name n-{css.removeprefix('b-')}", "middle")
        y += ROW * rows_of[host] + 10
    _draw_ticks(drawing, place, low, high, height - 5, width)
    return drawing.markup()


def _scale(seconds: float, far: bool) -> float:
    return math.copysign(math.log1p(abs(seconds)), seconds) if far else seconds


def _stack(rows: Sequence[TimelineRow], place: Callable[[float], float]) -> list[tuple[TimelineRow, int]]:
    """Give each event the first level on which it covers none before it."""
    ends: list[float] = []
    found = []
    for row in rows:
        x = place(row.seconds)
        level = next((n for n, end in enumerate(ends) if end <= x - RADIUS), len(ends))
        ends[level : level + 1] = [x + RADIUS + 2]
        found.append((row, level))
    return found


def _draw_ticks(
    drawing: Drawing, place: Callable[[float], float], low: float, high: float, y: float, width: float
) -> None:
    wanted = {sign * tick for tick in TICKS for sign in (-1, 1) if low <= sign * tick <= high}
    drawn: list[float] = []
    for seconds in sorted({low, high, *wanted}, key=lambda each: (each != 0, each not in (low, high), each)):
        x = place(seconds)
        if all(abs(x - other) > 70 for other in drawn):
            drawn.append(x)
            anchor = "end" if x > width - 40 else "middle"
            drawing.text(x, y, format_gap(seconds), "lane-tick", anchor)
