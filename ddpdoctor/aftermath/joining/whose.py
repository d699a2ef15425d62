"""Whose words and ends the parts of logs are: rank, attempt, process; and which tracebacks ended nothing."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from ddpdoctor.aftermath.parts import Log, is_launchers, is_passed_on
from ddpdoctor.aftermath.tracebacks import HEADER, Part, Told, read_traceback
from ddpdoctor.evidence import Frame
from ddpdoctor.evidence.job import ExceptionRecord, Moment, ProcessRecord
from ddpdoctor.gather.scrub import scrub, scrub_paths

MESSAGE_LIMIT = 8000
"""Characters of a message: one that quotes a loader worker's traceback has some 3000."""
LATE_LINES = 200
"""Lines of a log within which a traceback without rank counts where no agent says how the job ended: a log goes on
after what a program has caught."""
SECOND = 1_000_000_000
"""Nanoseconds."""
_WORKER = re.compile(r"in DataLoader worker process (\d{1,5})")
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")

Shorten = Callable[[str], str]


def make_shortener(base: Path) -> Shorten:
    """Return a function that names files relative to a folder where they lie below it, else without the home."""
    prefix = str(base.resolve()) + os.sep

    def shorten(name: str) -> str:
        return name[len(prefix) :] if name.startswith(prefix) else scrub_paths(name)

    return shorten


@dataclasses.dataclass(slots=True)
class Ranks:
    """Which local rank of a node is which rank, as far as something tells."""

    known: dict[tuple[int, int], int] = dataclasses.field(default_factory=dict)
    nodes: int = 1

    @classmethod
    def learn(cls, logs: Sequence[Log], hosts: Sequence[str]) -> Ranks:
        """Learn from blocks of failures, and from lines that bear both prefixes."""
        made = cls(nodes=max(1, len(hosts), len({log.node for log in logs})))
        for log in logs:
            for row in log.facts.agent.failures:
                if row.rank is not None and row.local_rank is not None:
                    node = hosts.index(row.host) if row.host else log.node
                    made.known[(node, row.local_rank)] = row.rank
            lines = [told.line for told in log.facts.told] + [dump.line for dump in log.facts.dumps]
            pairs = [(line.local_rank, line.rank) for line in lines]
            pairs += [(text.local_rank, text.match.rank) for text in log.facts.texts]
            for local, rank in pairs:
                local = log.place.local_rank if local is None and log.place is not None else local
                if local is not None and rank is not None:
                    made.known.setdefault((log.node, local), rank)
        return made

    def find(self, log: Log, rank: int | None, local: int | None, label: int | None = None) -> int | None:
        """Return the rank of a line; None where it cannot be told."""
        if rank is not None:
            return rank
        local = log.place.local_rank if local is None and log.place is not None else local
        if local is not None:
            return self.of_local(log.node, local)
        return label if not log.facts.agent_seen else None

    def of_local(self, node: int, local: int) -> int | None:
        """Return the rank of a local rank; on one node they are the same."""
        return self.known.get((node, local), local if self.nodes == 1 else None)


def make_exception(
    told: Told, log: Log, rank: int | None, attempt: int, shorten: Shorten, *, kind: str = "log"
) -> ExceptionRecord:
    """Return the record of a traceback, with the exceptions before it."""

    def make(part: Part, link: str | None) -> ExceptionRecord:
        frames = [
            Frame(shorten(frame.file), frame.line, frame.function, frame.source)
            for frame in reversed(part.frames)
        ]
        return ExceptionRecord(
            pid=0,
            type=part.type,
            message=scrub("\n".join(part.message).rstrip())[:MESSAGE_LIMIT],
            frames=tuple(frames),
            rank=rank,
            node=log.node,
            attempt=attempt,
            kind="thread" if told.thread is not None else kind,
            link=link,
            source=(log.name, part.number),
        )

    parts = told.parts
    record = dataclasses.replace(
        make(parts[-1], None),
        thread=told.thread,
        chain=tuple(make(part, part.link) for part in reversed(parts[:-1])),
    )
    quoted = _read_quoted(parts[-1])
    if quoted is None:
        return record
    inner = make(quoted.parts[-1], None)
    worker = _WORKER.search(parts[-1].message[0])
    return dataclasses.replace(
        record,
        type=inner.type,
        message=inner.message,
        frames=inner.frames,
        parent_frames=record.frames if worker else (),
        worker=int(worker[1]) if worker else None,
        chain=(*(make(part, part.link) for part in reversed(quoted.parts[:-1])), *record.chain),
    )


def _read_quoted(part: Part) -> Told | None:
    """Return the traceback that a message quotes: of a loader's worker, or of a process that spawn started."""
    if not any(HEADER in line for line in part.message):
        return None
    told = read_traceback("\n".join(line.replace("Original " + HEADER, HEADER) for line in part.message))
    return told if told is not None and told.parts[-1].frames else None


@dataclasses.dataclass(slots=True)
class Sorted:
    """The tracebacks of all logs."""

    owned: list[ExceptionRecord] = dataclasses.field(default_factory=list)
    loose: list[ExceptionRecord] = dataclasses.field(default_factory=list)
    """Exceptions of no rank that is known."""
    launchers: list[tuple[Log, Told]] = dataclasses.field(default_factory=list)
    """Tracebacks of the agent itself, without what it only passes on."""
    passed_on: list[Told] = dataclasses.field(default_factory=list)
    mixed: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    """File and line of tracebacks between whose lines others wrote."""


def sort_tracebacks(logs: Sequence[Log], ranks: Ranks, shorten: Shorten) -> Sorted:
    """Tell the tracebacks that ended a rank from those of the agent, and from those that were only printed.

    What torch's hook printed was uncaught. Of other tracebacks with a rank, the last one of an attempt may have
    ended it, and only where the hook printed none.
    """
    sorted_ = Sorted()
    by_rank: dict[tuple[int, int], list[tuple[Told, ExceptionRecord]]] = {}
    loose: list[tuple[Told, ExceptionRecord]] = []
    for log in logs:
        for told in log.facts.told:
            if is_launchers(told):
                if is_passed_on(told):
                    sorted_.passed_on.append(told)
                else:
                    sorted_.launchers.append((log, told))
                continue
            line = told.line
            if not line.hooked and not _may_end(told, log):
                continue
            rank = ranks.find(log, line.rank, line.local_rank, line.label)
            if rank is None and told.index is not None and ranks.nodes == 1:
                rank = told.index  # torch.multiprocessing.spawn counts its processes
            record = make_exception(told, log, rank, log.attempt_at(line.number), shorten)
            if told.interleaved:
                sorted_.mixed.append((log.name, line.number))
            rows = loose if rank is None else by_rank.setdefault((record.attempt, rank), [])
            rows.append((told, record))
    for rows in by_rank.values():
        main = [row for row in rows if row[1].kind != "thread"]
        uncaught = [record for told, record in main if told.line.hooked] or _unlogged(main)[-1:]
        sorted_.owned += _distinct(uncaught)
        sorted_.owned += _distinct([record for _, record in rows if record.kind == "thread"])
    sorted_.loose = _unlogged(loose)
    return sorted_


def _may_end(told: Told, log: Log) -> bool:
    """Whether a traceback without torch's prefix can have ended a rank: one of which the agent speaks, or late."""
    if log.facts.agent.failures:
        return True
    return not told.logged and log.facts.lines - told.last <= LATE_LINES


def _unlogged(rows: Sequence[tuple[Told, ExceptionRecord]]) -> list[ExceptionRecord]:
    """Leave out what a logger wrote, where others remain."""
    return [record for told, record in rows if not told.logged] or [record for _, record in rows]


def _distinct(records: Sequence[ExceptionRecord]) -> list[ExceptionRecord]:
    """Leave out what one rank said twice, in its own file and in what was teed."""
    return list({sign(record): record for record in reversed(records)}.values())[::-1]


def sign(record: ExceptionRecord) -> tuple[object, ...]:
    """Return what is equal for two ranks that failed alike."""
    place = tuple((frame.file, frame.line) for frame in record.frames[:4])
    first = record.message.partition("\n")[0][:200]
    return (record.type.rpartition(".")[2], place, _NUMBERS.sub("#", first))


def give_away(
    loose: Sequence[ExceptionRecord], processes: list[ProcessRecord], owned: Sequence[ExceptionRecord]
) -> tuple[list[ExceptionRecord], list[str]]:
    """Give tracebacks without rank to the ranks that ended with an exception's status and have none of their own.

    Python ends with status 1 after an uncaught exception. Where several such ranks and several different tracebacks
    remain, nothing tells whose is whose: the tracebacks stay without rank, and the statuses, which then say nothing
    more, are taken out of ``processes``.

    Returns:
        The records, and a sentence for each attempt in which it could not be told.
    """
    notes: list[str] = []
    given: list[ExceptionRecord] = []
    for attempt, node in sorted({(record.attempt, record.node) for record in loose}):
        mine = [record for record in loose if (record.attempt, record.node) == (attempt, node)]
        told = {record.rank for record in owned if record.attempt == attempt and record.kind != "thread"}
        here = [process for process in processes if (process.attempt, process.node) == (attempt, node)]
        needy = [process for process in here if process.exit_code == 1 and process.rank not in told]
        kinds = {sign(record): record for record in mine}
        if not here:
            given += kinds.values()
        elif len(needy) == 1:
            given.append(_give(mine[-1], needy[0]))
        elif needy and len(kinds) == 1:
            given += [_give(record, process) for record, process in zip(mine, needy, strict=False)]
        elif needy:
            names = ", ".join(str(process.rank) for process in needy)
            notes.append(f"the log does not show which of ranks {names} printed which traceback")
            given += kinds.values()
            for process in needy:
                processes.remove(process)
    return given, notes


def _give(record: ExceptionRecord, process: ProcessRecord) -> ExceptionRecord:
    def give(each: ExceptionRecord) -> ExceptionRecord:
        return dataclasses.replace(
            each, rank=process.rank, pid=process.pid, node=process.node, host=process.host
        )

    return dataclasses.replace(give(record), chain=tuple(give(each) for each in record.chain))


def set_times(
    records: Sequence[ExceptionRecord], processes: Sequence[ProcessRecord], changed_s: float | None = None
) -> list[ExceptionRecord]:
    """Give each exception the process that it ended, and the time of that end.

    The agent's clock tells whole seconds; within one, the order of the log's lines decides, which is written down as
    nanoseconds.

    Args:
        records: exceptions of ranks.
        processes: how the ranks ended, where an agent says it.
        changed_s: when the only log was last written: the second that counts where no agent tells one.
    """
    by_rank = {(process.attempt, process.rank): process for process in processes}
    made = []
    for record in records:
        process = by_rank.get((record.attempt, record.rank)) if record.rank is not None else None
        if process is not None:
            record = _give(record, process)
        ended = process.ended.wall_ns // SECOND if process is not None and process.ended is not None else None
        second = ended if process is not None else changed_s
        if second is not None and record.at is None and record.source is not None:
            at = Moment(int(second) * SECOND + min(record.source[1], SECOND - 1))
            record = dataclasses.replace(record, at=at)
        made.append(record)
    return made
