"""One job's evidence out of everything that its files say."""

from __future__ import annotations

import dataclasses
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ddpdoctor.aftermath.joining.differing import find_differences
from ddpdoctor.aftermath.joining.file_nodes import separate_hosts
from ddpdoctor.aftermath.joining.hosts import Hosts
from ddpdoctor.aftermath.joining.raised import add_error_files, add_launchers
from ddpdoctor.aftermath.joining.timeline import make_timeline
from ddpdoctor.aftermath.joining.unequal_calls import find_unequal_calls
from ddpdoctor.aftermath.joining.whose import (
    Ranks,
    Sorted,
    give_away,
    make_shortener,
    set_times,
    sort_tracebacks,
)
from ddpdoctor.aftermath.joining.workers import make_crashes, make_ended, make_processes
from ddpdoctor.aftermath.notable import mask_numbers
from ddpdoctor.aftermath.parts import Error, Log, name_hosts
from ddpdoctor.aftermath.tracebacks import Told
from ddpdoctor.evidence import Absent, Evidence, Launch
from ddpdoctor.evidence.bundle import KINDS
from ddpdoctor.evidence.job import (
    ExceptionRecord,
    JobEnd,
    NotableLine,
    ProcessRecord,
    TextMatch,
)
from ddpdoctor.evidence.texts.matching import CAUSE, find_entry

FROM_LOGS = ("processes", "exceptions", "crashes", "texts", "job")
"""Kinds that logs can hold; the others are absent."""
MOST_NOTABLE = 10
"""Lines worth reading that are kept of all logs."""
_GOT = "got signal: "


def join_logs(
    logs: Sequence[Log], errors: Sequence[Error], *, cwd: Path, lost: Sequence[str] = ()
) -> Evidence:
    """Put together what was read.

    Args:
        logs: logs of one job, of one node or of several.
        errors: its error files.
        cwd: folder against which files are named.
        lost: what could not be read, one sentence each.
    """
    shorten = make_shortener(cwd)
    separate_hosts(logs)
    hosts = name_hosts(list(logs))
    ranks = Ranks.learn(logs, hosts)
    sorted_ = sort_tracebacks(logs, ranks, shorten)
    processes = make_processes(logs, hosts, ranks)
    if sorted_.passed_on:
        processes += make_ended(logs, processes)
    exceptions = add_error_files(sorted_.owned, logs, errors, processes, ranks, shorten)
    given, notes = give_away(sorted_.loose, processes, exceptions)
    changed_s = logs[0].changed_s if len(logs) == 1 and not processes else None
    exceptions = set_times([*exceptions, *given], processes, changed_s)
    exceptions += add_launchers(sorted_, processes, shorten)
    crashes, unplaced = make_crashes(logs, processes, ranks, shorten)
    finder = Hosts(logs, hosts)
    texts = _make_texts(logs, ranks, finder, processes, exceptions)
    texts += [*find_differences(texts), *find_unequal_calls(logs)]
    notes += unplaced + _tell_lost(logs, sorted_)
    end = _make_end(logs, sorted_, processes, exceptions, [*lost, *notes])
    end = dataclasses.replace(end, timeline=make_timeline(logs, texts, processes, finder))
    return Evidence(
        launch=_describe(processes, exceptions, texts, ranks, end, _count_members(logs), finder.count),
        processes=tuple(processes),
        exceptions=tuple(exceptions),
        crashes=tuple(crashes),
        texts=tuple(texts),
        job=(end,),
        absent=make_absent() if _recognises(logs, exceptions) else {**make_absent(), **_unrecognised()},
    )


def _recognises(logs: Sequence[Log], exceptions: Sequence[ExceptionRecord]) -> bool:
    """Whether anything shows that these are the words of a job at all."""
    return bool(exceptions) or any(
        log.facts.agent_seen
        or log.facts.agent.succeeded
        or log.facts.texts
        or log.facts.dumps
        or log.facts.members
        or log.place
        or any("NCCL WARN" in line.text for line in log.facts.notable)
        for log in logs
    )


def _unrecognised() -> dict[str, Absent]:
    why = Absent("no line of a distributed job was recognized")
    return {kind: why for kind in FROM_LOGS if kind != "job"}


def make_absent() -> dict[str, Absent]:
    """Return why the other kinds are missing."""
    why = Absent("not available from logs", applicable=False)
    return {kind: why for kind in KINDS if kind not in FROM_LOGS}


def _make_texts(
    logs: Sequence[Log],
    ranks: Ranks,
    finder: Hosts,
    processes: Sequence[ProcessRecord],
    exceptions: Sequence[ExceptionRecord],
) -> list[TextMatch]:
    """Return the texts with their ranks; a cause that no rank's prefix owns goes to who ended without another."""
    made: list[TextMatch] = []
    spoken = {(record.attempt, record.rank) for record in exceptions}
    for log in logs:
        quoted = [(told.line.number, told.last) for told in log.facts.told]
        for text in log.facts.texts:
            match = text.match
            line = match.line or 0
            node, host = finder.place(log, match)
            rank = finder.find_rank(match, host)
            match = dataclasses.replace(
                match,
                node=node,
                attempt=log.attempt_at(line),
                rank=rank if rank is not None else ranks.find(log, match.rank, text.local_rank, text.label),
                host=host,
            )
            inside = any(start <= line <= end for start, end in quoted)
            owners = [] if match.rank is not None or inside else _owners(match, processes, spoken)
            made += [dataclasses.replace(match, rank=own.rank, pid=own.pid) for own in owners] or [match]
    return made


def _owners(
    match: TextMatch, processes: Sequence[ProcessRecord], spoken: set[tuple[int, int | None]]
) -> list[ProcessRecord]:
    """Return the processes that a cause in the log may explain: who ended itself without an exception of its own."""
    entry = find_entry(match.entry)
    if entry.role != CAUSE or match.pid is not None or "pid" in match.groups:
        return []
    silent = [
        process
        for process in processes
        if process.attempt == match.attempt
        and process.role == "rank"
        and (process.exit_code or process.signal == signal.SIGABRT)
        and (process.attempt, process.rank) not in spoken
    ]
    return silent if len(silent) <= match.count else []


def _tell_lost(logs: Sequence[Log], sorted_: Sorted) -> list[str]:
    notes = [
        f"tracebacks of several ranks are interleaved at {name}:{line}" for name, line in sorted_.mixed[:3]
    ]
    for log in logs:
        if log.facts.dropped:
            notes.append(f"{log.name}: {log.facts.dropped} repeated messages and tracebacks are skipped")
    return notes


def _make_end(
    logs: Sequence[Log],
    sorted_: Sorted,
    processes: Sequence[ProcessRecord],
    exceptions: Sequence[ExceptionRecord],
    lost: Sequence[str],
) -> JobEnd:
    failed = sorted_.passed_on or sorted_.launchers or any(log.facts.agent.failures for log in logs)
    agents = [log.facts.agent for log in logs if log.facts.agent_seen or log.facts.agent.succeeded]
    ended_well = bool(agents) and all(agent.succeeded for agent in agents)
    return JobEnd(
        exit_code=1 if failed else 0 if ended_well else None,  # Python's, after the agent's exception
        restarts=max([0, *(each.attempt for each in processes), *(each.attempt for each in exceptions)]),
        lost=tuple(dict.fromkeys(lost)),
        interrupted=_interrupted(sorted_.passed_on),
        notable=_choose_notable(logs),
    )


def _choose_notable(logs: Sequence[Log]) -> tuple[NotableLine, ...]:
    """Return the lines worth reading: those that report trouble, and first those that stand in one log only."""
    lines = [line for log in logs for line in log.facts.notable]
    chosen = [line for line in lines if line.trouble] or lines
    logs_of: dict[str, set[str]] = {}
    for line in chosen:
        logs_of.setdefault(mask_numbers(line.text), set()).add(line.file)
    ordered = sorted(
        enumerate(chosen), key=lambda item: (len(logs_of[mask_numbers(item[1].text)]) > 1, item[0])
    )
    first: dict[str, tuple[int, NotableLine]] = {}
    for place, line in ordered:
        first.setdefault(mask_numbers(line.text), (place, line))
    return tuple(line for _, line in sorted(list(first.values())[:MOST_NOTABLE], key=lambda item: item[0]))


def _interrupted(passed_on: Sequence[Told]) -> str | None:
    """Return the signal of a Ctrl-C that the agent was given; others are findings."""
    words = [" ".join(told.parts[-1].message) for told in passed_on]
    return "SIGINT" if any(text[text.find(_GOT) :].strip() == _GOT + "2" for text in words) else None


def _count_members(logs: Sequence[Log]) -> int:
    """Return the ranks of the largest communicator of NCCL; 0 where none was set up."""
    return max((member.size for log in logs for member in log.facts.members.values()), default=0)


def _describe(
    processes: Sequence[ProcessRecord],
    exceptions: Sequence[ExceptionRecord],
    texts: Sequence[TextMatch],
    ranks: Ranks,
    end: JobEnd,
    members: int,
    nodes: int,
) -> Launch:
    said = [*(p.rank for p in processes), *(e.rank for e in exceptions), *(t.rank for t in texts)]
    seen = [*(rank for rank in said if rank is not None), *ranks.known.values()]
    locals_ = [local for _, local in ranks.known] + [
        p.local_rank for p in processes if p.local_rank is not None
    ]
    counts = Counter(process.attempt for process in processes if process.role == "rank")
    world = max(max(seen, default=0) + 1, *counts.values(), 1, members)
    return Launch(
        command="analyze",
        launcher=end.launcher,
        nnodes=max(ranks.nodes, nodes),
        nproc=max(locals_, default=world - 1 if ranks.nodes == 1 else 0) + 1,
        world_size=world,
        backend="none",
    )
