"""Bandwidth curves: bus bandwidth over size, both logarithmic; one drawing and one table per operation."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from ddpdoctor.evidence import BandwidthRow, Baseline, Evidence
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.html.svg import Drawing, LogScale, polyline
from ddpdoctor.report.words import count, format_bandwidth, format_bytes, format_seconds, is_known

SERIES_SHOWN = 6
"""Curves in one drawing: as many as there are colours."""
SIZES_SHOWN = 64
"""Sizes of one curve: every power of two up to 16 EiB."""
OPERATIONS_SHOWN = 24
"""Drawings: torch.distributed has 13 collectives and send/recv."""
WIDTH, HEIGHT = 380.0, 236.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 14.0, 24.0, 24.0
"""Size and margins of a drawing in its own units, about CSS pixels at the width of a two-column page."""
AIR = 1.6
"""Factor left free above and below the curves: a fifth of a decade."""


@dataclass(frozen=True, slots=True)
class SizeRow:
    """One size in the table."""

    size: str
    time: str
    spread: str
    algbw: str
    busbw: str
    busbw_spread: str
    iterations: int
    correct: bool


@dataclass(frozen=True, slots=True)
class SeriesView:
    """One curve: an operation on one backend, type and number of ranks."""

    label: str
    rows: tuple[SizeRow, ...]


@dataclass(frozen=True, slots=True)
class CurveView:
    """One operation."""

    op: str
    summary: str
    drawing: Markup | None
    series: tuple[SeriesView, ...]


@dataclass(frozen=True, slots=True)
class BandwidthView:
    """All operations, and what to compare them with."""

    curves: tuple[CurveView, ...]
    baselines: tuple[tuple[str, str, str], ...]
    """Name, bandwidth and detail."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """The axes that all drawings share, so that they can be compared."""

    x: LogScale
    y: LogScale
    baselines: tuple[tuple[str, float], ...]


def view_bandwidth(evidence: Evidence, caps: Caps) -> BandwidthView:
    """Return the curves of a report's evidence."""
    baselines = _baselines(evidence.baselines)
    frame = _frame(evidence.bandwidth, [(name, value) for name, value, _ in baselines])
    by_op: dict[str, dict[str, list[BandwidthRow]]] = {}
    for row in evidence.bandwidth:
        label = f"{row.backend} {row.dtype}, {count(row.ranks, 'rank')}"
        by_op.setdefault(row.op, {}).setdefault(label, []).append(row)
    curves = []
    for index, (op, series) in enumerate(
        caps.take(list(by_op.items()), OPERATIONS_SHOWN, "bandwidth curves")
    ):
        chosen = caps.take(list(series.items()), SERIES_SHOWN, f"curves of {op}")
        rows = [
            (label, sorted(caps.take(found, SIZES_SHOWN, f"sizes of {op}"), key=lambda row: row.bytes))
            for label, found in chosen
        ]
        curves.append(_curve(op, f"bw{index + 1}", rows, frame))
    return BandwidthView(
        tuple(curves), tuple((name, format_bandwidth(value), detail) for name, value, detail in baselines)
    )


def _baselines(baselines: tuple[Baseline, ...]) -> list[tuple[str, float, str]]:
    """Name, lowest bandwidth over nodes, and detail; a collective is as fast as its slowest node."""
    groups: dict[str, list[Baseline]] = {}
    for each in baselines:
        groups.setdefault(each.name, []).append(each)
    found = []
    for name, members in groups.items():
        values = [each.bandwidth for each in members if is_known(each.bandwidth)] or [0.0]
        detail = members[0].detail or ""
        if len(members) > 1:
            spread = f"slowest of {count(len(members), 'node')}, fastest {format_bandwidth(max(values))}"
            detail = f"{detail}; {spread}" if detail else spread
        found.append((name.replace("-", " "), min(values), detail))
    return found


def _usable(row: BandwidthRow) -> bool:
    """Whether a row can stand on logarithmic axes."""
    return row.bytes > 0 and all(is_known(v) and v > 0 for v in (row.busbw, row.busbw_min, row.busbw_max))


def _frame(rows: tuple[BandwidthRow, ...], baselines: list[tuple[str, float]]) -> _Frame | None:
    usable = [row for row in rows if _usable(row)]
    if not usable:
        return None
    lines = tuple((name, value) for name, value in baselines if is_known(value) and value > 0)
    speeds = [v for row in usable for v in (row.busbw_min, row.busbw_max)] + [value for _, value in lines]
    sizes = [row.bytes for row in usable]
    return _Frame(
        LogScale(min(sizes), max(sizes), LEFT + 6, WIDTH - RIGHT - 6, 2),
        LogScale(min(speeds) / AIR, max(speeds) * AIR, HEIGHT - BOTTOM, TOP, 10),
        lines,
    )


def _curve(
    op: str, ident: str, series: list[tuple[str, list[BandwidthRow]]], frame: _Frame | None
) -> CurveView:
    rows = series[0][1]
    best = max(rows, key=lambda row: row.busbw if is_known(row.busbw) else 0.0)
    summary = (
        f"{format_bandwidth(best.busbw)} bus at {format_bytes(best.bytes)} · "
        f"{format_seconds(rows[0].seconds)} at {format_bytes(rows[0].bytes)}"
    )
    drawing = _draw(op, ident, summary, series, frame) if frame is not None else None
    tables = tuple(SeriesView(label, tuple(_table_row(row) for row in found)) for label, found in series)
    return CurveView(op, summary, drawing, tables)


def _table_row(row: BandwidthRow) -> SizeRow:
    return SizeRow(
        format_bytes(row.bytes),
        format_seconds(row.seconds),
        f"{format_seconds(row.seconds_min)} to {format_seconds(row.seconds_max)}",
        format_bandwidth(row.algbw),
        format_bandwidth(row.busbw),
        f"{format_bandwidth(row.busbw_min)} to {format_bandwidth(row.busbw_max)}",
        row.iterations,
        row.correct,
    )


def _draw(
    op: str, ident: str, summary: str, series: list[tuple[str, list[BandwidthRow]]], frame: _Frame
) -> Markup:
    names = ", ".join(label for label, _ in series)
    drawing = Drawing(
        WIDTH,
        HEIGHT,
        "curve",
        title=f"Bus bandwidth of {op} over buffer size",
        ident=ident,
        description=f"{summary}. Curves: {names}. The table below holds the same figures.",
    )
    _draw_axes(drawing, frame)
    for index, (label, rows) in enumerate(series):
        _draw_series(drawing, frame, index, label, [row for row in rows if _usable(row)])
    return drawing.markup()


def _draw_axes(drawing: Drawing, frame: _Frame) -> None:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for power in frame.y.ticks(7):
        y = frame.y(power)
        drawing.line(LEFT, y, right, y, "grid")
        drawing.text(LEFT - 7, y + 3.5, _short_speed(power), "tick", "end")
    for size in frame.x.ticks(6):
        x = frame.x(size)
        drawing.line(x, bottom, x, bottom + 4, "axis")
        drawing.text(x, bottom + 16, format_bytes(size), "tick", "middle")
    drawing.line(LEFT, bottom, right, bottom, "axis")
    drawing.text(LEFT - 7, 11, "GB/s", "tick", "end")
    for index, (name, value) in enumerate(frame.baselines):
        y = frame.y(value)
        drawing.line(LEFT, y, right, y, "baseline")
        x, anchor = (
            (right - 6, "end") if index % 2 else (LEFT + 6, "start")
        )  # lines may be close to each other
        drawing.text(x, y - 4, name, "tick", anchor)


def _draw_series(drawing: Drawing, frame: _Frame, index: int, label: str, rows: list[BandwidthRow]) -> None:
    if not rows:
        return
    upper = [(frame.x(row.bytes), frame.y(row.busbw_max)) for row in rows]
    lower = [(frame.x(row.bytes), frame.y(row.busbw_min)) for row in rows]
    if len(rows) > 1:
        drawing.path(polyline([*upper, *reversed(lower)]) + "Z", f"band c{index}")
        drawing.path(
            polyline([(frame.x(row.bytes), frame.y(row.busbw)) for row in rows]), f"curve-line c{index}"
        )
    for row in rows:
        x, y = frame.x(row.bytes), frame.y(row.busbw)
        if len(rows) == 1:
            drawing.line(x, frame.y(row.busbw_min), x, frame.y(row.busbw_max), f"whisker c{index}")
        speed, time = format_bandwidth(row.busbw), format_seconds(row.seconds)
        tip = f"{label}: {speed} at {format_bytes(row.bytes)}, {time}"
        drawing.circle(x, y, 2.6, f"dot c{index}" + ("" if row.correct else " wrong"), tip)


def _short_speed(value: float) -> str:
    return f"{value:g}" if value >= 0.001 else f"{value:.0e}"
