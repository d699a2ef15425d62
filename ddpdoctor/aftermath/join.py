"""One job's evidence out of everything that its files say."""

from __future__ import annotations

import dataclasses
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ddpdoctor.aftermath.agent import Failure
from ddpdoctor.aftermath.hosts import Hosts
from ddpdoctor.aftermath.logs import LogFacts
from ddpdoctor.aftermath.nodes import separate_hosts
from ddpdoctor.aftermath.notable import mask_numbers
from ddpdoctor.aftermath.parts import Error, Log, name_hosts
from ddpdoctor.aftermath.timeline import make_timeline
from ddpdoctor.aftermath.tracebacks import Told
from ddpdoctor.aftermath.whose import (
    SECOND,
    Ranks,
    Shorten,
    Sorted,
    give_away,
    make_exception,
    make_shortener,
    set_times,
    sort_tracebacks,
)
from ddpdoctor.evidence import Absent, Evidence, Launch
from ddpdoctor.evidence.bundle import KINDS
from ddpdoctor.evidence.job import (
    CrashRecord,
    ExceptionRecord,
    JobEnd,
    Moment,
    NotableLine,
    ProcessRecord,
    TextMatch,
)
from ddpdoctor.evidence.texts import CAUSE, find_entry
from ddpdoctor.gather.scrub import scrub

FROM_LOGS = ("processes", "exceptions", "crashes", "texts", "job")
"""Kinds that logs can hold; the others are absent."""
_ENDED = {"agent-ends-rank": signal.SIGTERM.value, "agent-passes-hangup": signal.SIGHUP.value}
"""Entries of the table in which an agent says that it ends a worker, and the signal that it sends."""
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
    processes = _make_processes(logs, hosts, ranks)
    if sorted_.passed_on:
        processes += _make_ended(logs, processes)
    exceptions = _add_error_files(sorted_.owned, logs, errors, processes, ranks, shorten)
    given, notes = give_away(sorted_.loose, processes, exceptions)
    changed_s = logs[0].changed_s if len(logs) == 1 and not processes else None
    exceptions = set_times([*exceptions, *given], processes, changed_s)
    exceptions += _add_launchers(sorted_, processes, shorten)
    crashes, unplaced = _make_crashes(logs, processes, ranks, shorten)
    finder = Hosts(logs, hosts)
    texts = _make_texts(logs, ranks, finder, processes, exceptions)
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


def _make_processes(logs: Sequence[Log], hosts: Sequence[str], ranks: Ranks) -> list[ProcessRecord]:
    """Return the workers of which an agent says how they ended, once each."""
    made: dict[tuple[int, int], ProcessRecord] = {}
    for log in logs:
        by_pid = {exit.pid: exit.line for exit in log.facts.agent.exits}
        for row in log.facts.agent.failures:
            node = hosts.index(row.host) if row.host else log.node
            line = 0 if row.root else by_pid.get(row.pid, row.line)
            made[(node, row.pid)] = _make_process(row, node, log.last_attempt or 0, line)
        for exit in log.facts.agent.exits:
            if (log.node, exit.pid) not in made:
                attempt = log.facts.attempt_at(exit.line)
                rank = ranks.of_local(log.node, exit.local_rank)
                host = log.hosts[0] if log.hosts else ""
                row = Failure(exit.line, False, None, host, rank, exit.local_rank, exit.status, exit.pid)
                made[(log.node, exit.pid)] = _make_process(row, log.node, attempt, exit.line)
    return list(made.values())


def _make_ended(logs: Sequence[Log], known: Sequence[ProcessRecord]) -> list[ProcessRecord]:
    """Return the workers that an agent ended because it was told to end itself; it names only their processes."""
    seen = {(process.node, process.pid) for process in known}
    made: dict[tuple[int, int], ProcessRecord] = {}
    for log in logs:
        for text in log.facts.texts:
            number = _ENDED.get(text.match.entry)
            if number is None or log.facts.agent.failures:
                continue
            key = (log.node, int(text.match.groups["pid"]))
            if key not in seen:
                made[key] = ProcessRecord(
                    pid=key[1],
                    node=log.node,
                    attempt=log.attempt_at(text.match.line or 0),
                    signal=number,
                    signal_sender="agent",
                    watched=False,
                    unwatched_reason="read from a log",
                )
    return list(made.values())


def _make_process(row: Failure, node: int, attempt: int, line: int) -> ProcessRecord:
    status = row.status or 0
    ended = None
    if row.time is not None:
        # The time of the node's clock without its zone: that of whoever reads the log.
        ended = Moment(int(row.time.timestamp()) * SECOND + min(line, SECOND - 1))
    return ProcessRecord(
        pid=row.pid,
        node=node,
        host=row.host,
        rank=row.rank,
        local_rank=row.local_rank,
        attempt=attempt,
        ended=ended,
        exit_code=status if status >= 0 else None,
        signal=-status if status < 0 else None,
        watched=False,
        unwatched_reason="read from a log",
    )


def _add_error_files(
    owned: Sequence[ExceptionRecord],
    logs: Sequence[Log],
    errors: Sequence[Error],
    processes: Sequence[ProcessRecord],
    ranks: Ranks,
    shorten: Shorten,
) -> list[ExceptionRecord]:
    """Add what error files, and blocks that quote them, say of ranks whose logs say nothing of the kind."""
    made = list(owned)
    for log in logs:
        for row in log.facts.agent.failures:
            told = row.read_words()
            if told is not None:
                record = make_exception(
                    told, log, row.rank, log.last_attempt or 0, shorten, kind="error-file"
                )
                made += _unless_known(dataclasses.replace(record, source=(log.name, row.line)), made)
    stamped = not any(process.ended for process in processes)
    for each in errors:
        node = next(
            (log.node for log in logs if log.place and each.place and log.place.run == each.place.run), 0
        )
        rank = ranks.of_local(node, each.place.local_rank) if each.place is not None else None
        record = _make_error(each, rank, node, shorten)
        if stamped and each.error.seconds is not None:
            record = dataclasses.replace(record, at=Moment(each.error.seconds * SECOND))
        made += _unless_known(record, made)
    return made


def _make_error(each: Error, rank: int | None, node: int, shorten: Shorten) -> ExceptionRecord:
    attempt = each.place.attempt if each.place is not None else 0
    error = each.error
    if error.told is None:
        return ExceptionRecord(
            pid=0,
            type=error.type or "Exception",
            message=scrub(error.message)[:8000],
            node=node,
            rank=rank,
            attempt=attempt,
            kind="error-file",
            source=(each.name, 1),
        )
    log = Log(LogFacts(each.name), each.place, node=node)
    return dataclasses.replace(
        make_exception(error.told, log, rank, attempt, shorten, kind="error-file"), source=(each.name, 1)
    )


def _unless_known(record: ExceptionRecord, known: Sequence[ExceptionRecord]) -> list[ExceptionRecord]:
    name, first = record.type.rpartition(".")[2], record.message.partition("\n")[0]
    for other in known:
        same = (other.rank, other.node, other.attempt) == (record.rank, record.node, record.attempt)
        if same and other.type.rpartition(".")[2] == name and other.message.partition("\n")[0] == first:
            return []
    return [record]


def _add_launchers(
    sorted_: Sorted, processes: list[ProcessRecord], shorten: Shorten
) -> list[ExceptionRecord]:
    """Return the agents' own exceptions; each agent becomes a process where its log names it."""
    made = []
    for log, told in sorted_.launchers:
        record = make_exception(told, log, None, 0, shorten)
        # The console script is nobody's line.
        kept = tuple(frame for frame in record.frames if not frame.file.endswith("/torchrun"))
        record = dataclasses.replace(record, frames=kept)
        pid = log.facts.agent.pid
        if pid is not None:
            host = log.hosts[0] if log.hosts else ""
            record = dataclasses.replace(record, pid=pid, host=host)
            if not any((process.node, process.pid) == (log.node, pid) for process in processes):
                processes.append(
                    ProcessRecord(
                        pid=pid, node=log.node, host=host, role="launcher", exit_code=1, watched=False
                    )
                )
        made.append(record)
    return made


def _make_crashes(
    logs: Sequence[Log], processes: list[ProcessRecord], ranks: Ranks, shorten: Shorten
) -> tuple[list[CrashRecord], list[str]]:
    """Give each dump the process that died of its signal; a rank that only its dump names becomes a process."""
    made: list[CrashRecord] = []
    notes = []
    for log in logs:
        for dump in log.facts.dumps:
            rank = ranks.find(log, dump.line.rank, dump.line.local_rank, dump.line.label)
            attempt = log.attempt_at(dump.line.number)
            taken = {(crash.node, crash.pid) for crash in made}
            fits = [
                process
                for process in processes
                if (process.attempt == attempt and process.signal == dump.signal)
                and (process.node, process.pid) not in taken
                and (rank is None or process.rank == rank)
            ]
            record = CrashRecord(
                pid=0,
                title=scrub(dump.title),
                frames=tuple(dataclasses.replace(f, file=shorten(f.file)) for f in dump.frames),
                node=log.node,
                rank=rank,
                attempt=attempt,
                modules=dump.modules[:500],
            )
            if len(fits) == 1 or (fits and len(log.facts.dumps) >= len(fits) and _all_alike(log)):
                own = fits[0]
                record = dataclasses.replace(record, pid=own.pid, rank=own.rank, node=own.node, host=own.host)
            elif rank is not None and dump.signal is not None:
                processes.append(
                    ProcessRecord(
                        pid=0, node=log.node, rank=rank, attempt=attempt, signal=dump.signal, watched=False
                    )
                )
            else:
                notes.append(
                    f"{log.name}:{dump.line.number} does not show which rank reported {record.title!r}"
                )
            made.append(record)
    return made, notes


def _all_alike(log: Log) -> bool:
    return len({(dump.title, tuple((f.file, f.line) for f in dump.frames)) for dump in log.facts.dumps}) == 1


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
