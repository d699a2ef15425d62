"""What came after the cause, by the times of all logs: who went silent, who timed out, and how much later."""

from __future__ import annotations

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.timeline import TimedEvent
from ddpdoctor_checks.common.wording import name_set
from ddpdoctor_checks.job.blame.complaints import TIMED_OUT
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.blame.failures import quote_line

APART_S = 2.0
"""Times of two nodes closer than this are not ordered: clocks differ, and many logs have whole seconds only."""

LONGEST_S = 86_400.0
"""What comes later than a day is no consequence, or the clocks are not of one job."""


def find_event(diagnosis: Diagnosis, group: Group) -> TimedEvent | None:
    """Return the dated line of a cause; None where it has no date."""
    words = {each.words for each in group.failures}
    timeline = [event for end in diagnosis.evidence.job for event in end.timeline]
    return next((event for event in timeline if event.entry and quote_line(event.text) in words), None)


def describe_sequence(diagnosis: Diagnosis, group: Group) -> str:
    """Return a sentence on what followed the cause; empty where nothing dated did, or where it followed something."""
    start = find_event(diagnosis, group)
    if start is None or start.kind != "cause":
        return ""
    timeline = [event for end in diagnosis.evidence.job for event in end.timeline]
    later = [event for event in timeline if APART_S < _gap(start, event) < LONGEST_S]
    parts = []
    silent = next(
        (
            event
            for event in later
            if event.kind in ("progress", "call") and (not start.host or _here(event, start))
        ),
        None,
    )
    if silent is not None:
        parts.append(f"{_who(silent)} went silent {format_later(_gap(start, silent))} later")
    late = [event for event in later if event.entry in TIMED_OUT]
    if late:
        ranks = RankSet()
        for event in late:
            ranks = ranks.union(event.ranks)
        who = name_set(ranks) if ranks else "the other ranks"
        parts.append(f"the timeouts of {who} {format_later(_gap(start, late[0]))} later are a consequence")
    return f" {_capitalise('; '.join(parts))}." if parts else ""


def _gap(start: TimedEvent, event: TimedEvent) -> float:
    return (event.wall_ns - start.wall_ns) / 1e9


def _here(event: TimedEvent, start: TimedEvent) -> bool:
    return event.host == start.host or (event.kind == "call" and not event.host)


def _who(event: TimedEvent) -> str:
    ranks = name_set(event.ranks) if event.ranks else ""
    if ranks and event.host:
        return f"{ranks} ({event.host})"
    return ranks or event.host or "its ranks"


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def format_later(seconds: float) -> str:
    """Return ``41 s``, ``10 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
