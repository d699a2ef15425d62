"""Exceptions of a job that its error files, its agents' blocks and its agents themselves tell of."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ddpdoctor.aftermath.joining.whose import (
    SECOND,
    Ranks,
    Shorten,
    Sorted,
    make_exception,
)
from ddpdoctor.aftermath.logs import LogFacts
from ddpdoctor.aftermath.parts import Error, Log
from ddpdoctor.evidence.job import (
    ExceptionRecord,
    Moment,
    ProcessRecord,
)
from ddpdoctor.gather.scrub import scrub


def add_error_files(
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


def add_launchers(sorted_: Sorted, processes: list[ProcessRecord], shorten: Shorten) -> list[ExceptionRecord]:
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
