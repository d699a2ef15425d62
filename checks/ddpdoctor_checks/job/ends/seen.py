"""What was seen of a job's end: exceptions and lines of the cause, earlier attempts, complaints of the victims."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ddpdoctor.evidence import RankSet
from ddpdoctor.judge import EvidenceItem
from ddpdoctor_checks.common.wording import count_of
from ddpdoctor_checks.job.blame.conditions import LAUNCHERS
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.blame.failures import Failure, Level, describe_exception
from ddpdoctor_checks.job.blame.restarts import explain_restarts
from ddpdoctor_checks.job.ends.clauses import Clause
from ddpdoctor_checks.job.ends.subjects import format_gap, tell_gap

MOST_ATTEMPTS = 5
"""Other attempts whose failures are named."""
_SHORT = (
    "Connection closed by peer", "Connection reset by peer", "Connection was likely closed", "Broken pipe",
    "Connection refused", "Socket closed", "closed by remote peer", "remote process exited", "ncclRemoteError",
    "Timed out waiting", "collective operation timeout", "timed out", "timeout", "Socket Timeout", "aborted",
)  # fmt: skip
"""The telling part of what victims say, the most telling first."""
_CALLED = {"agent": "the agent", "its parent": "its parent"}
"""How the line on victims calls those of `LAUNCHERS`."""
_LINKS = {"cause": "raised from", "member": "holds"}
"""How an exception belongs to the one before it in its chain."""


def keep_once(items: Iterable[EvidenceItem]) -> list[EvidenceItem]:
    """Return each sentence once, with the place in a log that any of its items has."""
    kept: dict[tuple[str, tuple[int, ...]], EvidenceItem] = {}
    for item in items:
        key = (item.text, tuple(item.ranks or ()))
        known = kept.setdefault(key, item)
        if known.source is None and item.source is not None:
            kept[key] = replace(known, source=item.source)
    return list(kept.values())


def list_seen(diagnosis: Diagnosis, group: Group, clause: Clause, cause: bool) -> Iterator[EvidenceItem]:
    """Yield what the processes of a group said, what came before it, and, of the cause, what followed on others."""
    first = group.first
    kind = "exception" if first.exception is not None else "text" if first.entry is not None else "exit"
    words = first.outer or first.words
    words = f"{words} ({first.note})" if first.note else words
    source = first.exception.source if first.exception is not None else None
    yield EvidenceItem(kind, words, group.ranks or None, source)
    if first.exception is not None:
        for link in first.exception.chain[:3]:
            how = _LINKS.get(link.link or "", "raised while handling")
            yield EvidenceItem(
                "exception", f"{how} {describe_exception(link.type, link.message)}", group.ranks or None
            )
    if first.before is not None:
        earlier = first.before
        gap = tell_gap(diagnosis, earlier, first)
        where = f" at {earlier.line.file}:{earlier.line.line}" if earlier.line is not None else ""
        yield EvidenceItem(
            "exception",
            f"{f'{gap} before' if gap else 'before'}: {earlier.words} {earlier.note}{where}".replace(
                "  ", " "
            ),
            group.ranks or None,
        )
    for line in first.proof:
        yield EvidenceItem("kernel", line, group.ranks or None)
    yield from clause.seen
    if cause:
        yield from describe_victims(diagnosis)
        same = [
            attempt
            for attempt, mark in diagnosis.repeats
            if mark == dict(diagnosis.repeats)[diagnosis.attempt]
        ]
        if len(same) > 1:
            yield EvidenceItem("restart", f"the same failure in {count_of(len(same), 'attempt')}")
        others = [each for each in diagnosis.earlier if each[0] not in same]
        for attempt, other in others[-MOST_ATTEMPTS:]:
            place = other.first.line
            at = f" at {place.file}:{place.line}" if place is not None else ""
            text = f"another failure in attempt {attempt}: {other.first.words}{at}"
            yield EvidenceItem("restart", text, other.ranks or None)
        yield from explain_restarts(diagnosis)


def describe_victims(diagnosis: Diagnosis) -> Iterator[EvidenceItem]:
    """Yield one line per kind of complaint: who, what, how long after the first failure."""
    groups: dict[str, list[Failure]] = {}
    for each in diagnosis.victims:
        if each.rank is not None:
            groups.setdefault(shorten_complaint(each), []).append(each)
    start = diagnosis.cause.first if diagnosis.cause is not None else None
    for words, members in list(groups.items())[:6]:
        ranks = RankSet(each.rank for each in members if each.rank is not None)
        gaps = [
            each.at - start.at for each in members if start and start.at is not None and each.at is not None
        ]
        near = start is not None and all(
            not diagnosis.clock.tolerance(start.view.node, m.view.node) and not (m.coarse or start.coarse)
            for m in members
        )
        yield EvidenceItem("victim", f"{words}{_span(gaps) if gaps and near else ''}", ranks)


def _span(gaps: Sequence[float]) -> str:
    low, high = min(gaps), max(gaps)
    if low < 0:
        return ""
    if format_gap(low) == format_gap(high):
        return f" {format_gap(low)} later"
    return f" {format_gap(low)} to {format_gap(high)} later"


def shorten_complaint(failure: Failure) -> str:
    """Return ``"Connection closed by peer"``, or how it was ended, for the line on victims."""
    if failure.level == Level.ENDED:
        sender = (failure.view.process.signal_sender or "") if failure.view.process is not None else ""
        who = next((name for name in LAUNCHERS if sender.startswith(name)), None)
        return f"{failure.words} from {_CALLED[who]}" if who is not None else failure.words
    return next(
        (f'"{part}"' for part in _SHORT if part in failure.words or part in failure.message), failure.words
    )
