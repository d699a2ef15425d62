"""The time axis over all logs of a job."""

from __future__ import annotations

from dataclasses import dataclass

from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.model import Report
from ddpdoctor.report.timeline import TimelineRow, day_of, list_rows

ROWS_SHOWN = 48


@dataclass(frozen=True, slots=True)
class TimelineView:
    """Events in order."""

    day: str
    rows: tuple[TimelineRow, ...]


def view_timeline(report: Report, caps: Caps) -> TimelineView | None:
    """Return the time axis of what logs and recorders date; None where hardly anything is dated."""
    rows = list_rows(report)
    return TimelineView(day_of(report) or "", caps.take(rows, ROWS_SHOWN, "dated events")) if rows else None
