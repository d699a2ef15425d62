"""From what the processes of a job wrote down to evidence: events, faults and logs of one run directory."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import cast

from ddpdoctor.evidence import Frame
from ddpdoctor.evidence.codec import decode, mend
from ddpdoctor.evidence.job import (
    CrashRecord,
    ExceptionRecord,
    Moment,
    ProcessRecord,
    TextMatch,
    WrapperFacts,
)
from ddpdoctor.evidence.rounds import tell_rounds
from ddpdoctor.evidence.standstill import Stand, Standstill
from ddpdoctor.evidence.training.fingerprints import Training
from ddpdoctor.facts import training_events
from ddpdoctor.facts.events import AnyEvent, ChildExit, ExceptionEvent, ExitCall, WrapperError
from ddpdoctor.gather.log_tail import read_last_words
from ddpdoctor.gather.regular import open_regular
from ddpdoctor.gather.scrub import scrub
from ddpdoctor.watch.readers.caught import Caught, choose_reported
from ddpdoctor.watch.readers.events import DAMAGED, read_events
from ddpdoctor.watch.readers.logs import match_exception, scan_log
from ddpdoctor.watch.readers.records import (
    MESSAGE_LIMIT,
    Shortener,
    advance_process,
    end_process,
    read_exception,
    read_moment,
    read_wrapper,
    start_process,
)
from ddpdoctor.watch.readers.senders import ITSELF, Kill, name_senders
from ddpdoctor.watch.readers.slimming import Slimmer
from ddpdoctor.watch.readers.training import KINDS as TRAINING
from ddpdoctor.watch.readers.training import TrainingReader

EVENTS_LIMIT = 64 << 20
"""Bytes of one process's events that are read; the hook itself stops long before."""
_FAULT_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_FAULT_LIBRARY = re.compile(r'^  Binary file "(?P<file>[^"]{1,400})", at ')
_RUNTIME = ("python", "libpython", "libc.so", "libc-", "libpthread", "ld-linux", "linux-vdso")
"""How file names of the interpreter and the C library begin, through which every signal comes."""
_FAULT_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+")


@dataclass(slots=True)
class Collected:
    """Evidence of one run directory."""

    processes: list[ProcessRecord] = field(default_factory=list)
    exceptions: list[ExceptionRecord] = field(default_factory=list)
    crashes: list[CrashRecord] = field(default_factory=list)
    wrappers: list[WrapperFacts] = field(default_factory=list)
    texts: list[TextMatch] = field(default_factory=list)
    standstills: list[Standstill] = field(default_factory=list)
    training: list[Training] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Seen:
    """What processes wrote of others, and what can be judged only when all have been read."""

    ends: dict[int, ChildExit] = field(default_factory=dict)
    kills: list[Kill] = field(default_factory=list)
    agents: list[int] = field(default_factory=list)
    caught: list[Caught] = field(default_factory=list)
    reports: list[ExceptionEvent] = field(default_factory=list)
    """Exceptions that ended processes, as they were written."""
    exits: dict[int, ExitCall] = field(default_factory=dict)
    """The last call of an exit, where no exception came later."""
    training: dict[Path, tuple[ProcessRecord, list[training_events.AnyEvent]]] = field(default_factory=dict)
    """What processes wrote of the steps that they made."""
    slimmer: Slimmer = field(default_factory=Slimmer)


def collect_run(
    path: Path, *, node: int = 0, cwd: Path | None = None, log_bytes: int | None = None
) -> Collected:
    """Read a run directory; what is damaged is passed over and said.

    Args:
        path: the directory.
        node: index of the node that it is of.
        cwd: directory against which files are named; the reader's own when None.
        log_bytes: read of each log, half of it at each end; all when None.
    """
    found, seen = Collected(), _Seen()
    shorten = Shortener(cwd or Path.cwd())
    for file in sorted((path / "processes").glob("*.jsonl")):
        _read_process(file, node, shorten, found, seen)
    ended = [mend(end_process(record, seen.ends.get(record.pid)))[0] for record in found.processes]
    named = name_senders(ended, seen.kills, seen.agents)
    found.processes = [_settle_exit(record, seen, found, shorten) for record in named]
    by_pid = {record.pid: record for record in found.processes}
    _take_caught(shorten, by_pid, found, seen)
    for file in sorted((path / "processes").glob("*.fault")):
        _read_fault(file, node, shorten, by_pid, found)
    for file in sorted((path / "logs").glob("*.log")):
        _read_log(file, by_pid, found, log_bytes)
    for exception in found.exceptions:
        found.texts.extend(match_exception(exception, by_pid.get(exception.pid)))
    # Run directories of version 0.1 before 2026-11-23 have them in looks/.
    for file in sorted([*(path / "snapshots").glob("*.json"), *(path / "looks").glob("*.json")]):
        _read_look(file, node, found, by_pid)
    _fold_training(node, shorten, found, seen)
    return found


def collect_training(paths: Sequence[Path]) -> tuple[Training | None, list[str]]:
    """Compare what the ranks of one job wrote of their training into several run directories.

    Args:
        paths: of the directories.

    Returns:
        What was seen, with node 0; and what was lost of it.
    """
    found, seen = Collected(), _Seen()
    shorten = Shortener(Path.cwd())
    for path in paths:
        for file in sorted((path / "processes").glob("*.jsonl")):
            _read_process(file, 0, shorten, found, seen)
    lost = Collected()
    _fold_training(0, shorten, lost, seen)
    return (lost.training[0] if lost.training else None), lost.lost


def _fold_training(node: int, shorten: Shortener, found: Collected, seen: _Seen) -> None:
    """Compare what the ranks of the last attempt wrote of their training."""
    rounds = tell_rounds(process for process, _ in seen.training.values())

    def attempt_of(process: ProcessRecord) -> int:
        return rounds.get((process.node, process.pid), process.attempt)

    last = max((attempt_of(process) for process, _ in seen.training.values()), default=0)
    reader = TrainingReader(shorten)
    for path, (process, events) in seen.training.items():
        if attempt_of(process) == last and process.rank is not None and process.is_rank:
            reader.add(process.rank, path, events, process.world_size or 0)
    training = reader.fold(node)
    if training is not None:
        found.training.append(training)
    if reader.damaged:
        found.lost.append(f"{reader.damaged} events of the training are damaged")


def _take_caught(
    shorten: Shortener, by_pid: Mapping[int, ProcessRecord], found: Collected, seen: _Seen
) -> None:
    """Take the exceptions of ranks that another process reported as the end of the job."""
    for each in choose_reported(seen.caught, seen.reports):
        record = by_pid.get(each.pid)
        if record is None or record.rank is None or any(e.pid == each.pid for e in found.exceptions):
            continue
        try:
            found.exceptions.append(mend(read_exception(each.event, record, shorten))[0])
        except DAMAGED as problem:
            found.lost.append(
                f"an exception of process {each.pid} is damaged: {type(problem).__name__}: {problem}"
            )


def _read_look(path: Path, node: int, found: Collected, processes: Mapping[int, ProcessRecord]) -> None:
    try:
        with open_regular(path) as file:
            data = file.read(EVENTS_LIMIT + 1)
        if len(data) > EVENTS_LIMIT:
            raise ValueError("it is too long")
        look = decode(Standstill, json.loads(data))
    except (OSError, ValueError, RecursionError) as problem:
        found.lost.append(f"{path.name} could not be read: {type(problem).__name__}: {problem}")
        return
    stands = tuple(_settle_stand(stand, node, processes.get(stand.pid)) for stand in look.stands)
    found.standstills.append(dataclasses.replace(look, stands=stands))


def _settle_stand(stand: Stand, node: int, process: ProcessRecord | None) -> Stand:
    """Say of a rank that was gone how it ended, which was not known at the look."""
    stand = dataclasses.replace(stand, node=node)
    if stand.alive or process is None:
        return stand
    code = stand.exit_code if process.exit_code is None else process.exit_code
    return dataclasses.replace(stand, exit_code=code, signal=process.signal or stand.signal)


def _read_events(path: Path) -> Iterator[AnyEvent]:
    with open_regular(path) as file:
        data = file.read(EVENTS_LIMIT)
    return (event for event in read_events(data) if "wall_ns" in event)


def _read_process(path: Path, node: int, shorten: Shortener, found: Collected, seen: _Seen) -> None:
    record: ProcessRecord | None = None
    told: list[ExceptionEvent | WrapperError] = []
    trained: list[training_events.AnyEvent] = []
    slim = seen.slimmer.open()
    damaged = 0
    try:
        for event in _read_events(path):
            try:
                if event["event"] == "start":
                    record = start_process(event, record, node, shorten)
                elif record is not None:
                    record = advance_process(record, event, shorten)
                    _note(event, record, shorten, seen)
            except DAMAGED:
                damaged += 1
            if event["event"] == "exception" or event["event"] == "ddp":
                told.append(event)
            elif event["event"] in TRAINING:
                try:
                    trained.append(slim.take(cast(training_events.AnyEvent, event)))
                except DAMAGED:
                    damaged += 1
            elif event["event"] == "trouble":
                said = f"{event.get('where')}: {event.get('text')}"[:MESSAGE_LIMIT]
                found.lost.append(f"watching process {path.stem}: {said}")
    except OSError as problem:
        found.lost.append(f"{path.name} could not be read: {problem.strerror or problem}")
    if damaged:
        found.lost.append(f"{damaged} events of {path.name} are damaged")
    if record is None:
        return
    try:
        process, wrong = mend(record)
    except ValueError as problem:
        found.lost.append(f"{path.name} is damaged: {problem}")
        return
    if wrong:
        found.lost.append(f"{path.name} is damaged: {', '.join(wrong)}")
    found.processes.append(process)
    if trained and process.rank is not None:
        seen.training[path] = process, trained
    raised = next((each.get("frames") for each in told if each["event"] == "exception"), None)
    for event in told:
        try:
            if event["event"] == "exception":
                seen.reports.append(event)
                found.exceptions.append(mend(read_exception(event, process, shorten))[0])
            else:
                found.wrappers.append(mend(read_wrapper(event, process, shorten, raised))[0])
        except DAMAGED as problem:
            found.lost.append(f"an event of {path.name} is damaged: {type(problem).__name__}: {problem}")


def _note(event: AnyEvent, record: ProcessRecord, shorten: Shortener, seen: _Seen) -> None:
    """Keep what an event says of other processes, or of the end that is still to come."""
    if event["event"] == "child-exit":
        seen.ends[int(event["pid"])] = event
    elif event["event"] == "kill":
        pid, pgid = event.get("pid"), event.get("pgid")
        seen.kills.append(
            Kill(
                record.pid,
                int(event["signal"]),
                read_moment(event),
                int(pid) if pid is not None else None,
                int(pgid) if pgid is not None else None,
                shorten.frames(event.get("frames")),
            )
        )
    elif event["event"] == "role" and event.get("how") == "elastic agent":
        seen.agents.append(record.pid)
    elif event["event"] == "caught":
        seen.caught.append(Caught(record.pid, event))
    elif event["event"] == "exit-call":
        seen.exits[record.pid] = event
    elif event["event"] == "exception" and event.get("kind") == "uncaught":
        seen.exits.pop(record.pid, None)  # what that call raised was caught, and the process went on


def _settle_exit(record: ProcessRecord, seen: _Seen, found: Collected, shorten: Shortener) -> ProcessRecord:
    """Keep the call of an exit where it ended the process; what it stood in the handler of is evidence too.

    A SystemExit can be caught: then the process ends later, in another way.
    """
    if record.exit_how is None:
        return record
    event = seen.exits.get(record.pid)
    if event is None or not _is_end(event.get("status"), record):
        call = record.exit_call if record.signal_sender == ITSELF else ()
        return dataclasses.replace(record, exit_call=call, exit_how=None, exit_text=None)
    if isinstance(event.get("exception"), dict):
        try:
            found.exceptions.append(mend(read_exception(event, record, shorten, handled=True))[0])
        except DAMAGED as problem:
            found.lost.append(
                f"an exit of process {record.pid} is damaged: {type(problem).__name__}: {problem}"
            )
    return record


def _is_end(status: object, record: ProcessRecord) -> bool:
    """Whether an exit that was called with this status can be how a process ended."""
    if not isinstance(status, int):
        return True
    if record.signal is not None:  # of the shutdown, after a call that asked for a failure
        return record.clean_end and status != 0
    return record.exit_code is None or status & 0xFF == record.exit_code


def _read_fault(
    path: Path, node: int, shorten: Shortener, by_pid: dict[int, ProcessRecord], found: Collected
) -> None:
    """Read what faulthandler wrote: a title, stacks with the current thread marked, extension modules."""
    text = read_last_words(path, 1 << 20)
    name = path.stem.partition("-")[0]
    if not text or not name.isdecimal() or len(name) > 10:
        return
    pid = int(name)
    lines = text.splitlines()
    title = next((line for line in lines if line.startswith("Fatal Python error")), lines[0])
    frames = _choose_stack(lines, shorten)
    modules = next((line for line in lines if line.startswith("Extension modules:")), "")
    names = modules.partition(":")[2].rpartition(" (total")[0]
    record = by_pid.get(pid)
    found.crashes.append(
        CrashRecord(
            pid=pid,
            title=title,
            frames=frames,
            node=node,
            host=record.host if record else "",
            rank=record.rank if record else None,
            attempt=record.attempt if record else 0,
            modules=tuple(name.strip() for name in names.split(",") if name.strip()),
            native=_choose_library(lines),
            at=_date_fault(path, record),
        )
    )


def _choose_stack(lines: list[str], shorten: Shortener) -> tuple[Frame, ...]:
    """Return the stack of the thread that crashed; where that runs no Python, the main thread's."""
    stacks: list[tuple[bool, list[list[object]]]] = []
    for line in lines:
        if _FAULT_THREAD.match(line):
            stacks.append((line.startswith("Current thread"), []))
        frame = _FAULT_FRAME.match(line)
        if frame and stacks:
            stacks[-1][1].append([frame["file"], frame["line"], frame["function"]])
    current = next((rows for is_current, rows in stacks if is_current), [])
    main = next((rows for _, rows in reversed(stacks) if rows and rows[-1][2] == "<module>"), [])
    return shorten.frames(current or main)


def _choose_library(lines: list[str]) -> str | None:
    """Return the native library that crashed, which Python 3.14 and later write down: the first that is not its own."""
    files = [PurePath(found["file"]).name for line in lines if (found := _FAULT_LIBRARY.match(line))]
    return next((name for name in files if not name.startswith(_RUNTIME)), None)


def _date_fault(path: Path, record: ProcessRecord | None) -> Moment | None:
    """Return when the fault was written: launchers notice an end later. Of a copied file that may be nonsense."""
    if record is None or record.started is None:
        return None
    try:
        written = path.stat().st_mtime_ns
    except OSError:
        return None
    last = record.ended.wall_ns if record.ended is not None else written
    return Moment(written) if record.started.wall_ns <= written <= last else None


def _read_log(path: Path, by_pid: dict[int, ProcessRecord], found: Collected, most: int | None) -> None:
    """Look through one log; its last words go to the process's record."""
    parts = path.name.split(".")
    pid = int(parts[2]) if len(parts) > 3 and re.fullmatch("[0-9]{1,10}", parts[2]) else None
    record = by_pid.get(pid) if pid is not None else None
    stream = "stderr" if ".stderr." in path.name else "stdout"
    try:
        found.texts.extend(scan_log(path, record, stream, most))
    except OSError as problem:
        found.lost.append(f"{path.name} could not be read: {problem.strerror}")
    if record is not None and stream == "stderr":
        words = read_last_words(path)
        place = found.processes.index(record)
        found.processes[place] = dataclasses.replace(record, last_words=scrub(words) if words else None)
        by_pid[record.pid] = found.processes[place]
