"""Events of all logs on one time axis: what was reported, when output stopped, when processes ended."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePath

from ddpdoctor.aftermath.joining.hosts import Hosts
from ddpdoctor.aftermath.logs import Text
from ddpdoctor.aftermath.parts import Log
from ddpdoctor.aftermath.stamps import choose_year
from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.collectives import COMPLETED, RETIRED, CallLog, RankCalls
from ddpdoctor.evidence.job import ProcessRecord, TextMatch
from ddpdoctor.evidence.texts.matching import CONSEQUENCE, NOISE, find_entry
from ddpdoctor.evidence.timeline import TimedEvent
from ddpdoctor.gather.collecting import CONTENTS, TOOLS

MOST = 48
"""Events that are kept: all that speak for a cause, then the first ones."""
TEXT_LIMIT = 400
UNTIMED = frozenset(
    {
        "child-failed",
        "traceback-not-recorded",
        "agent-saw-exit",
        "agent-reports-signal",
        "nccl-takes-process-down",
        "process-taken-down",
        "nccl-dump-signal",
        "nccl-work-status",
    }
)
"""Entries of lines that repeat what another event says."""
OF_TOOLS = frozenset({CONTENTS, "environment.txt", *(name for name, _ in TOOLS)})
"""Files of ddpdoctor collect that are no logs of a job."""
TOGETHER_NS = 2_000_000_000
"""Ranks that issued their last collective within it are one event."""


def make_timeline(
    logs: Sequence[Log], matches: Sequence[TextMatch], processes: Sequence[ProcessRecord], finder: Hosts
) -> tuple[TimedEvent, ...]:
    """Return what the logs of a job date, in order.

    Args:
        logs: that were read.
        matches: their texts with nodes and ranks.
        processes: workers of which an agent says when they ended.
        finder: of hosts.
    """
    stamps = [text.stamp for log in logs for text in log.facts.texts if text.stamp is not None]
    stamps += [log.facts.last for log in logs if log.facts.last is not None]
    changed = max((log.changed_s for log in logs if log.changed_s is not None), default=None)
    year = choose_year(stamps, changed)
    placed = {(match.file, match.line, match.entry): match for match in reversed(matches)}
    events = list(_ends(processes))
    for log in logs:
        said = [
            (text, placed.get((text.match.file, text.match.line, text.match.entry), text.match))
            for text in log.facts.texts
            if find_entry(text.match.entry).role != NOISE and text.match.entry not in UNTIMED
        ]
        events += _said(said, year)
        events += _progress(log, said, finder, year)
    return shorten(_order(events))


def _said(said: Iterable[tuple[Text, TextMatch]], year: int) -> Iterable[TimedEvent]:
    """Fold what one host says in the same words."""
    folded: dict[tuple[str, str], TimedEvent] = {}
    for text, match in said:
        if text.stamp is None:
            continue
        at = text.stamp.wall_ns(year)
        ranks = RankSet([match.rank]) if match.rank is not None else RankSet()
        key = (match.entry, match.host)
        known = folded.get(key)
        if known is None:
            folded[key] = TimedEvent(
                at, find_entry(match.entry).role, match.text[:TEXT_LIMIT], match.host, ranks, match.entry,
                match.file, match.line, match.count,
            )  # fmt: skip
            continue
        first = known if known.wall_ns <= at else replace(
            known, wall_ns=at, text=match.text[:TEXT_LIMIT], file=match.file, line=match.line
        )  # fmt: skip
        folded[key] = replace(first, ranks=known.ranks.union(ranks), count=known.count + match.count)
    return folded.values()


def _progress(
    log: Log, said: Sequence[tuple[Text, TextMatch]], finder: Hosts, year: int
) -> Iterable[TimedEvent]:
    """Yield when a log had its last ordinary line: before its ranks lost each other, or at its end."""
    own = [(text, match) for text, match in said if not finder.is_kernels(match)]
    if log.facts.kernel or (said and not own) or PurePath(log.name).name in OF_TOOLS:
        return
    lost = [text for text, match in own if find_entry(match.entry).role == CONSEQUENCE]
    troubles = {text.stamp for text, _ in own}
    first = lost[0] if lost else own[0][0] if own else None
    stamp = first.before if first is not None else log.facts.last
    if stamp is None or stamp in troubles:
        return
    hosts = [match.host for _, match in own if match.host]
    host = max(set(hosts), key=hosts.count) if hosts else finder.host_of(log)
    ranks = RankSet(match.rank for _, match in own if match.rank is not None).union(finder.ranks_on(host))
    yield TimedEvent(
        stamp.wall_ns(year),
        "progress",
        "last ordinary output" if own else "end of the log",
        host,
        ranks,
        file=log.name,
    )


def _ends(processes: Iterable[ProcessRecord]) -> Iterable[TimedEvent]:
    folded: dict[tuple[int, str, str], TimedEvent] = {}
    for process in processes:
        if process.ended is None or process.role != "rank":
            continue
        how = f"exit code {process.exit_code}" if process.signal is None else _name(process.signal)
        at = process.ended.wall_ns
        ranks = RankSet([process.rank]) if process.rank is not None else RankSet()
        key = (process.node, process.host, how)
        known = folded.get(key)
        folded[key] = (
            TimedEvent(at, "exit", f"processes ended: {how}", process.host, ranks)
            if known is None
            else replace(
                known, wall_ns=min(at, known.wall_ns), ranks=known.ranks.union(ranks), count=known.count + 1
            )
        )
    return folded.values()


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def date_calls(logs: Iterable[CallLog]) -> Iterable[TimedEvent]:
    """Yield when ranks issued their last collectives, by their Flight Recorders; ranks of one moment are one event."""
    rows = [
        (at, row.rank, name)
        for log in logs
        for row in log.ranks
        if (last := _last_begun(log, row))
        for at, name in [last]
    ]
    groups: list[list[tuple[int, int, str]]] = []
    for each in sorted(rows):
        if groups and each[0] - groups[-1][0][0] <= TOGETHER_NS and each[2] == groups[-1][0][2]:
            groups[-1].append(each)
        else:
            groups.append([each])
    for group in groups:
        words = f"last recorded collective: {group[0][2]}"
        yield TimedEvent(
            group[0][0], "call", words, ranks=RankSet(rank for _, rank, _ in group), count=len(group)
        )


def _last_begun(log: CallLog, row: RankCalls) -> tuple[int, str] | None:
    if not row.calls or not row.begun_ns or not row.begun_ns[-1]:
        return None
    made = log.calls[row.calls[-1]]
    state = row.states[-1]
    over = state & ~RETIRED == COMPLETED or bool(state & RETIRED)
    return row.begun_ns[-1], f"{made.op} #{row.sequences[-1]}, {'completed' if over else 'not completed'}"


def _order(events: Iterable[TimedEvent]) -> list[TimedEvent]:
    ordered = sorted(events, key=lambda event: (event.wall_ns, event.host, event.text))
    seen: dict[tuple[str | None, int | None, str], TimedEvent] = {}
    for event in ordered:  # one line may match several entries
        seen.setdefault((event.file, event.line, event.text), event)
    return list(seen.values())


def join_timelines(parts: Iterable[Sequence[TimedEvent]], calls: Iterable[CallLog]) -> tuple[TimedEvent, ...]:
    """Return the events of all parts and of the recorders in order."""
    return shorten(_order([*(event for part in parts for event in part), *date_calls(calls)]))


def shorten(events: Sequence[TimedEvent]) -> tuple[TimedEvent, ...]:
    """Keep what speaks for a cause, and of the rest the first."""
    if len(events) <= MOST:
        return tuple(events)
    chosen = sorted(range(len(events)), key=lambda place: (events[place].kind != "cause", place))[:MOST]
    return tuple(events[place] for place in sorted(chosen))
