"""Times at the head of lines: of loggers, containers, syslog, the kernel and c10d, which write neither year nor zone.

A time without a zone is taken for that of whoever reads the log, as the agent's are; one without a year for the year
in which it is nearest to the others.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass

SECOND = 1_000_000_000
DAY = 86_400
HEAD = 160
"""Characters of a line in which a time is looked for: launchers' prefixes stand before it."""
LOOK_BACK = 32 << 10
"""Bytes before a line, or at the end of a log, in which the last dated line is looked for."""
LINES_BACK = 200

_MONTHS = {name: number for number, name in enumerate(calendar.month_abbr) if name}
_CLOCK = r"(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?"
_DATED = re.compile(
    rf"(?<![\d-])(?P<year>20\d\d)[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _]{_CLOCK} ?(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
_KERNEL = re.compile(
    rf"\[[A-Z][a-z]{{2}} (?P<name>[A-Z][a-z]{{2}}) {{1,2}}(?P<day>\d{{1,2}}) {_CLOCK} (?P<year>20\d\d)\]"
)
"""dmesg -T."""
_SYSLOG = re.compile(rf"(?:^|(?<=\s))(?P<name>[A-Z][a-z]{{2}}) {{1,2}}(?P<day>\d{{1,2}}) {_CLOCK} ")
_GLOG = re.compile(rf"(?:^|(?<=[\s\[:]))[EWIF](?P<month>\d{{1,2}}?)(?P<day>\d\d) {_CLOCK}(?= )")
"""c10d and the elastic agent: ``E610 14:22:31.117`` is June 10; the month has no leading zero in C++."""
_PATTERNS = (_DATED, _KERNEL, _GLOG, _SYSLOG)


@dataclass(frozen=True, slots=True)
class Stamp:
    """A time as a line has it."""

    month: int
    day: int
    seconds: int
    """Seconds since the beginning of the day."""
    fraction_ns: int = 0
    year: int | None = None
    offset_s: int | None = None
    """East of UTC; None where the line names no zone."""

    def wall_ns(self, year: int) -> int:
        """Return nanoseconds since the epoch, taken for that year where the line names none."""
        shown = (self.year or year, self.month, self.day, 0, 0, 0)
        if self.offset_s is not None:
            whole = calendar.timegm((*shown, 0, 0, 0)) + self.seconds - self.offset_s
        else:
            whole = int(time.mktime((*shown, 0, 0, -1))) + self.seconds
        return whole * SECOND + self.fraction_ns


def read_stamp(text: str) -> Stamp | None:
    """Return the first time at the head of a line; None where there is none."""
    head = text[:HEAD]
    for pattern in _PATTERNS:
        found = pattern.search(head)
        stamp = _make(found) if found is not None else None
        if stamp is not None:
            return stamp
    return None


def _make(found: re.Match[str]) -> Stamp | None:
    parts = found.groupdict()
    month = _MONTHS.get(parts["name"], 0) if "name" in parts else int(parts["month"])
    day = int(parts["day"])
    hours, minutes, seconds = (int(parts[key]) for key in "hms")
    if not (1 <= month <= 12 and 1 <= day <= 31 and hours < 24 and minutes < 60 and seconds < 61):
        return None
    fraction = int((parts["f"] or "0").ljust(9, "0"))
    year = int(parts["year"]) if "year" in parts else None
    return Stamp(
        month, day, hours * 3600 + minutes * 60 + seconds, fraction, year, _read_zone(parts.get("zone"))
    )


def _read_zone(text: str | None) -> int | None:
    if text is None:
        return None
    if text == "Z":
        return 0
    digits = text[1:].replace(":", "")
    offset = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return -offset if text[0] == "-" else offset


def choose_year(stamps: Iterable[Stamp], changed_s: float | None) -> int:
    """Return the year of times that name none: that of those which do, else that in which the files were written."""
    years = sorted(stamp.year for stamp in stamps if stamp.year is not None)
    if years:
        return years[len(years) // 2]
    return time.localtime(changed_s).tm_year


def last_stamp(data: bytes) -> Stamp | None:
    """Return the time of the last dated line of a piece of a log."""
    for raw in reversed(data[-LOOK_BACK:].splitlines()[-LINES_BACK:]):
        stamp = read_stamp(raw[:HEAD].decode("utf-8", "replace"))
        if stamp is not None:
            return stamp
    return None
