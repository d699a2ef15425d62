"""The processes of a job as its logs tell of them: how workers ended, and the dumps of those that crashed."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Sequence

from ddpdoctor.aftermath.agent import Failure
from ddpdoctor.aftermath.joining.whose import (
    SECOND,
    Ranks,
    Shorten,
)
from ddpdoctor.aftermath.parts import Log
from ddpdoctor.evidence.job import (
    CrashRecord,
    Moment,
    ProcessRecord,
)
from ddpdoctor.gather.scrub import scrub

_ENDED = {"agent-ends-rank": signal.SIGTERM.value, "agent-passes-hangup": signal.SIGHUP.value}
"""Entries of the table in which an agent says that it ends a worker, and the signal that it sends."""


def make_processes(logs: Sequence[Log], hosts: Sequence[str], ranks: Ranks) -> list[ProcessRecord]:
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


def make_ended(logs: Sequence[Log], known: Sequence[ProcessRecord]) -> list[ProcessRecord]:
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


def make_crashes(
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
