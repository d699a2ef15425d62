"""The time axis of a job's logs, as rows of text: for the terminal and the page."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ddpdoctor.evidence.timeline import TimedEvent
from ddpdoctor.report.model import Report
from ddpdoctor.report.words import format_ranks

_HEAD = re.compile(
    r"^(?:\[[^\]]{1,60}\]:? ?|[A-Z][a-z]{2} {1,2}\d{1,2} [\d:.]{8,15} |20\d\d-\d\d-\d\d[T ][\d:.,]{8,18}Z? "
    r"|[\w.-]{1,64} kernel: ){0,5}"
)
"""Times, places and hosts at the head of a line, which have columns of their own."""
SECOND = 1_000_000_000
TEXT_SHOWN = 160


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One event."""

    at: str
    """Local time, e.g. ``14:12:20``."""
    gap: str
    """Seconds from the zero of the axis: ``+41 s``."""
    who: str
    text: str
    kind: str
    source: str
    zero: bool
    host: str = ""
    seconds: float = 0.0
    """Seconds from the zero of the axis."""


def list_events(report: Report) -> list[TimedEvent]:
    """Return the dated events of a job that was read from what it left; none where less than two are dated."""
    events = [event for end in report.evidence.job for event in end.timeline]
    return events if len(events) > 1 else []


def list_rows(report: Report) -> list[TimelineRow]:
    """Return the rows of the time axis, whose zero is the cause, or else the first event."""
    events = list_events(report)
    zero = _find_zero(events, report)
    days = {time.strftime("%Y-%m-%d", time.localtime(event.wall_ns // SECOND)) for event in events}
    form = "%H:%M:%S" if len(days) == 1 else "%m-%d %H:%M:%S"
    return [_row(event, zero, form, report) for event in events]


def choose_rows(rows: Sequence[TimelineRow], most: int) -> list[TimelineRow]:
    """Return so many rows, in order: the zero, what speaks for causes, when output stopped, then the first ones."""
    order = {"cause": 1, "progress": 2, "call": 2}
    ranked = sorted(range(len(rows)), key=lambda n: (not rows[n].zero, order.get(rows[n].kind, 3), n))
    return [rows[place] for place in sorted(ranked[:most])]


def day_of(report: Report) -> str | None:
    """Return the day of the first event."""
    events = list_events(report)
    return time.strftime("%Y-%m-%d", time.localtime(events[0].wall_ns // SECOND)) if events else None


def _find_zero(events: Sequence[TimedEvent], report: Report) -> TimedEvent | None:
    first = report.findings[0].message if report.findings else ""
    causes = [event for event in events if event.kind == "cause"]
    told = next((event for event in causes if _tail(event.text) in first), None)
    return told or (causes[0] if causes else events[0] if events else None)


def _tail(text: str) -> str:
    return text[-60:].strip()


def _row(event: TimedEvent, zero: TimedEvent | None, form: str, report: Report) -> TimelineRow:
    gap = (event.wall_ns - (zero.wall_ns if zero is not None else event.wall_ns)) / SECOND
    ranks = format_ranks(event.ranks, report.world.size) if event.ranks else ""
    who = " ".join(part for part in (event.host, ranks) if part)
    bare = _HEAD.sub("", event.text, count=1) or event.text
    text = bare if len(bare) <= TEXT_SHOWN else bare[: TEXT_SHOWN - 1] + "…"
    times = f" ({event.count} times)" if event.count > 1 and event.kind != "call" else ""
    source = f"{event.file}:{event.line}" if event.file and event.line else event.file or ""
    at = time.strftime(form, time.localtime(event.wall_ns // SECOND))
    return TimelineRow(
        at, format_gap(gap), who, f"{text}{times}", event.kind, source, event is zero, event.host, gap
    )


def format_gap(seconds: float) -> str:
    """Return ``0 s``, ``+41 s``, ``-1 min 20 s``, ``+2 h 05 min``."""
    size = round(abs(seconds))
    sign = "-" if seconds < 0 and size else "+" if size else ""
    if size < 60:
        return f"{sign}{size} s"
    if size < 3600:
        return f"{sign}{size // 60} min {size % 60:02d} s"
    return f"{sign}{size // 3600} h {size % 3600 // 60:02d} min"
