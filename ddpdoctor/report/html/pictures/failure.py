"""A crash: who failed first and what followed, a lane for each rank on one axis."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.job import CrashRecord, ExceptionRecord, ProcessRecord
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.html.pictures.marks import CHARACTER, SMALL, WIDE, Figure, Key, Sheet, cut, name_lane
from ddpdoctor.report.html.svg import Drawing
from ddpdoctor.report.words import format_ranks, format_seconds

LANES_SHOWN = 12
"""Lanes, the first failures first; the ranks behind them are counted."""
EVENTS_SHOWN = 3
"""Most events of one rank that are shown: the first ones and its end."""
LANE, TOP = 42.0, 6.0
TEXT_SHOWN = 72
"""Characters of a message: its first sentence, which a lane has room for beside the rank's end."""
MARGIN = 0.06
"""Room before the first failure and after the last end, as a share of the time between them."""
SECOND = 1e9
NOTICED_NS = 500_000
"""Nanoseconds from which an end that was noticed late is moved: less shows as 0 s."""
_PLACE = re.compile(r"\[[^\s\[\]]{1,200}:\d{1,6}\] ?")
"""Where in a C++ file a message was raised: ``[…/pair.cc:553]``."""


@dataclass(frozen=True, slots=True)
class _Event:
    wall_ns: int
    words: str
    kind: str
    """error (its own), follows (of a lost peer, a signal) or end."""


def draw_failure(evidence: Evidence, blamed: RankSet, affected: RankSet, caps: Caps) -> Figure | None:
    """Draw what happened from the first failure on; None where less than two moments are known.

    Args:
        evidence: exceptions, fatal signals, known lines of output and ends of processes.
        blamed: ranks that failed first.
        affected: ranks that only followed.
        caps: gets what is not shown.
    """
    ranks = _last_attempt(evidence.processes)
    lanes = {rank: _list_events(evidence, record, rank in affected) for rank, record in ranks.items()}
    lanes = {rank: events for rank, events in lanes.items() if events}
    _set_deaths_first(lanes, blamed)
    own = [event.wall_ns for rank in lanes if rank in blamed for event in lanes[rank]]
    if sum(map(len, lanes.values())) < 2 or not own:
        return None
    order = sorted(lanes, key=lambda rank: (rank not in blamed, lanes[rank][0].wall_ns, rank))
    groups = caps.take(_fold(order, lanes, blamed), LANES_SHOWN, "lanes of ranks")
    rows = [(group, lanes[group[0]], group[0] in blamed) for group in groups]
    return Figure(
        "Failure timeline",
        _draw(rows, min(own), WIDE),
        (Key("b-bad", "failed first"), Key("b-waits", "affected, not the cause"), Key("b-gone", "end")),
        small=_draw(rows, min(own), SMALL),
    )


def _set_deaths_first(lanes: dict[int, list[_Event]], blamed: RankSet) -> None:
    """Move ends of blamed ranks that were noticed after the others had lost them to where the others did.

    A process that a signal ended says nothing itself: its time is when its launcher noticed.
    """
    own = [event for rank in lanes if rank in blamed for event in lanes[rank]]
    first = min((event.wall_ns for events in lanes.values() for event in events), default=0)
    if any(event.kind != "end" for event in own):
        return
    for rank in lanes:
        if rank in blamed:
            lanes[rank] = [
                replace(
                    event,
                    wall_ns=first,
                    words=f"{event.words} (noticed {format_seconds((event.wall_ns - first) / SECOND)} later)",
                )
                if event.wall_ns - first >= NOTICED_NS
                else event
                for event in lanes[rank]
            ]


_Row = tuple[list[int], list[_Event], bool]
"""Ranks of a lane, what happened on each of them, and whether they failed first."""


def _draw(rows: Sequence[_Row], zero: int, sheet: Sheet) -> Markup:
    moments = [zero, *(event.wall_ns for _, events, _ in rows for event in events)]
    first, last = min(moments), max(moments)
    margin = MARGIN * max(last - first, 1e6)

    def place(wall_ns: float) -> float:
        whole = last - first + 2 * margin
        return sheet.left + (sheet.width - sheet.left) * (wall_ns - first + margin) / whole

    height = TOP + LANE * len(rows) + 20
    drawing = Drawing(
        sheet.width, height, f"swim {sheet.ident}", ident=f"failure-{sheet.ident}",
        title="Who failed first, and what followed",
        description=_describe(rows, zero),
    )  # fmt: skip
    x = place(zero)
    drawing.line(x, TOP, x, height - 18, "parting")
    for number, row in enumerate(rows):
        _draw_lane(drawing, TOP + LANE * number, row, place, zero, sheet)
    shares = (0.0, 0.25, 0.5, 0.75, 1.0) if sheet is WIDE else (0.0, 1.0)
    for share in shares:
        at = zero + share * (last - zero)
        words = "first failure" if share == 0 else f"+{format_seconds((at - zero) / SECOND)}"
        anchor = "end" if share == 1.0 else "start" if share == 0 and x < sheet.left + 80 else "middle"
        drawing.text(place(at), height - 5, words, "lane-tick", anchor)
    return drawing.markup()


def _draw_lane(
    drawing: Drawing, y: float, row: _Row, place: Callable[[float], float], zero: int, sheet: Sheet
) -> None:
    group, events, bad = row
    left, width = sheet.left, sheet.width
    drawing.text(
        left - 10, y + 15, name_lane(group, sheet), "lane-name is-bad" if bad else "lane-name", "end"
    )
    drawing.rect(left, y + 5, width - left, 12, "lane-back")
    drawing.rect(left, y + 5, max(1.0, place(events[-1].wall_ns) - left), 12, "lane-life")
    for event in events:
        kind = "gone" if event.kind == "end" else "bad" if bad else "waits"
        tip = f"{_gap(event, zero)} {event.words}"
        drawing.circle(place(event.wall_ns), y + 11, 5, f"spot b-{kind}", tip)
    words = " · ".join(f"{_gap(event, zero)} {event.words}" for event in events)
    x = max(left, min(place(events[0].wall_ns) + 6, width - len(words) * CHARACTER))
    drawing.text(x, y + 32, cut(words, width - x), "box-name n-bad-text" if bad else "box-name n-past")


def _gap(event: _Event, zero: int) -> str:
    seconds = (event.wall_ns - zero) / SECOND
    if abs(seconds) < 5e-4:
        return "0 s"
    return f"{'-' if seconds < 0 else '+'}{format_seconds(round(abs(seconds), 3))}"


def _last_attempt(processes: Sequence[ProcessRecord]) -> dict[int, ProcessRecord]:
    """Return the process of each rank, of the last attempt."""
    found: dict[int, ProcessRecord] = {}
    for each in processes:
        if each.is_rank and each.rank is not None:
            known = found.get(each.rank)
            if known is None or each.attempt >= known.attempt:
                found[each.rank] = each
    return found


def _list_events(evidence: Evidence, record: ProcessRecord, affected: bool) -> list[_Event]:
    """Return what is dated of one rank's end, in order."""
    said: list[tuple[ExceptionRecord | CrashRecord, str]] = [
        (each, f"{each.type.rpartition('.')[2]}: {each.message}") for each in evidence.exceptions
    ]
    said += [(each, each.title) for each in evidence.crashes]
    found = []
    for each, words in said:
        if each.at is not None and (each.node, each.pid) == (record.node, record.pid):
            bare = _PLACE.sub("", words.splitlines()[0] if words else "")
            found.append(_Event(each.at.wall_ns, _shorten(bare), "follows" if affected else "error"))
    for milestone in record.milestones:
        if milestone.name == "told-to-end" and record.signal is None:
            sender = f" by {milestone.detail}" if milestone.detail else ""
            found.append(_Event(milestone.at.wall_ns, f"asked to stop{sender}", "follows"))
    if record.ended is not None:
        found.append(_Event(record.ended.wall_ns, _name_end(record), "end"))
    found.sort(key=lambda event: event.wall_ns)
    return found if len(found) <= EVENTS_SHOWN else [*found[: EVENTS_SHOWN - 1], found[-1]]


def _shorten(words: str) -> str:
    first = words.partition(". ")[0]
    return first if len(first) <= TEXT_SHOWN else first[: TEXT_SHOWN - 1] + "…"


def _name_end(record: ProcessRecord) -> str:
    if record.signal is not None:
        try:
            name = signal.Signals(record.signal).name
        except ValueError:
            name = f"signal {record.signal}"
        sender = record.signal_sender
        return f"{name} from {sender}" if sender else name
    return f"exit code {record.exit_code}" if record.exit_code is not None else "ended"


def _fold(order: Sequence[int], lanes: dict[int, list[_Event]], blamed: RankSet) -> list[list[int]]:
    """Join ranks that ended the same way where there are more than there are lanes."""
    if len(order) <= LANES_SHOWN:
        return [[rank] for rank in order]
    groups: dict[tuple[object, ...], list[int]] = {}
    for rank in order:
        key = (rank in blamed, tuple((event.kind, event.words) for event in lanes[rank]))
        groups.setdefault(key, []).append(rank)
    return list(groups.values())


def _describe(rows: Sequence[_Row], zero: int) -> str:
    return "; ".join(
        f"{format_ranks(RankSet(group))}: "
        + ", ".join(f"{_gap(event, zero)} {event.words}" for event in events)
        for group, events, _ in rows
    )
