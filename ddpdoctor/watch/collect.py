"""From what the processes of a job wrote down to evidence: events, faults and logs of one run directory."""

from __future__ import annotations

import dataclasses
import json
import linecache
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddpdoctor.evidence import Frame
from ddpdoctor.evidence.job import (
    CrashRecord,
    ExceptionRecord,
    Milestone,
    Moment,
    ProcessRecord,
    TextMatch,
    WrappedParameter,
    WrapperFacts,
)
from ddpdoctor.evidence.texts import match_text, scan_chunk
from ddpdoctor.gather.logs import read_last_words
from ddpdoctor.gather.scrub import scrub, scrub_argv, scrub_paths
from ddpdoctor.gather.variables import allowed_variables

EVENTS_LIMIT = 64 << 20
"""Bytes of one process's events that are read; the hook itself stops long before."""
MESSAGE_LIMIT = 4000
SOURCE_LIMIT = 200
"""Characters of a source line that are shown."""
_FOREIGN = ("/site-packages/", "/dist-packages/", f"{os.sep}lib{os.sep}python3")
"""Parts of the paths of installed packages and of the standard library."""
CHUNK = 4 << 20
MATCHES_PER_LOG = 200
"""Different lines kept of one log; the same entry again is only counted."""
_FAULT_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_FAULT_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+")


@dataclass(slots=True)
class Collected:
    """Evidence of one run directory."""

    processes: list[ProcessRecord] = field(default_factory=list)
    exceptions: list[ExceptionRecord] = field(default_factory=list)
    crashes: list[CrashRecord] = field(default_factory=list)
    wrappers: list[WrapperFacts] = field(default_factory=list)
    texts: list[TextMatch] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def collect_run(path: Path, *, node: int = 0, cwd: Path | None = None) -> Collected:
    """Read a run directory; what is damaged is passed over and said.

    Args:
        path: the directory.
        node: index of the node that it is of.
        cwd: directory against which files are named; the reader's own when None.
    """
    found = Collected()
    shorten = _Shortener(cwd or Path.cwd())
    ends: dict[int, dict[str, Any]] = {}
    for file in sorted((path / "processes").glob("*.jsonl")):
        _read_process(file, node, shorten, found, ends)
    found.processes = [_with_end(record, ends.get(record.pid)) for record in found.processes]
    by_pid = {record.pid: record for record in found.processes}
    for file in sorted((path / "processes").glob("*.fault")):
        _read_fault(file, node, shorten, by_pid, found)
    for file in sorted((path / "logs").glob("*.log")):
        _read_log(file, by_pid, found)
    _match_exceptions(found)
    return found


class _Shortener:
    """Names files relative to the working directory where they lie below it, else without the home."""

    def __init__(self, cwd: Path) -> None:
        self._base = str(cwd.resolve()) + os.sep

    def __call__(self, name: str) -> str:
        if name.startswith(self._base):
            return name[len(self._base) :]
        return scrub_paths(name)

    def frames(self, rows: Any) -> tuple[Frame, ...]:
        if not isinstance(rows, list):
            return ()
        return tuple(
            Frame(self(str(f)), int(line or 0), str(name), _read_source(str(f), int(line or 0)))
            for f, line, name in rows
        )


def _read_source(file: str, line: int) -> str | None:
    """Return the text of a line of the user's own code: never a value, and nothing of torch or Python itself."""
    if not os.path.isabs(file) or any(part in file for part in _FOREIGN):
        return None
    text = linecache.getline(file, line).strip()
    return scrub(text)[:SOURCE_LIMIT] or None


def _read_events(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        data = file.read(EVENTS_LIMIT)
    for line in data.split(b"\n"):
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "event" in event and "wall_ns" in event:
            yield event


def _moment(event: dict[str, Any]) -> Moment:
    mono = event.get("mono_ns")
    return Moment(int(event["wall_ns"]), None if mono is None else int(mono))


def _read_process(
    path: Path, node: int, shorten: _Shortener, found: Collected, ends: dict[int, dict[str, Any]]
) -> None:
    record: ProcessRecord | None = None
    started: list[tuple[str, dict[str, Any]]] = []
    try:
        for event in _read_events(path):
            kind = event["event"]
            if kind == "start":
                record = _start(event, record, node, shorten)
            elif record is not None:
                record = _advance(record, kind, event, shorten)
            if kind == "child-exit":
                ends[int(event["pid"])] = event
            elif kind in ("exception", "ddp"):
                started.append((kind, event))
            elif kind == "trouble":
                found.lost.append(f"watching process {path.stem}: {event.get('where')}: {event.get('text')}")
    except (OSError, ValueError, TypeError, KeyError) as problem:
        found.lost.append(f"{path.name} could not be read: {type(problem).__name__}: {problem}")
    if record is None:
        return
    found.processes.append(record)
    for kind, event in started:
        try:
            if kind == "exception":
                found.exceptions.append(_exception(event, record, shorten))
            else:
                found.wrappers.append(_wrapper(event, record))
        except (ValueError, TypeError, KeyError) as problem:
            found.lost.append(f"an event of {path.name} is damaged: {type(problem).__name__}: {problem}")


def _start(
    event: dict[str, Any], before: ProcessRecord | None, node: int, shorten: _Shortener
) -> ProcessRecord:
    if event.get("forked") and before is None:
        return ProcessRecord(
            pid=int(event["pid"]), node=node, parent=event.get("ppid"), role="other", started=_moment(event)
        )
    script = event.get("script")
    return ProcessRecord(
        pid=int(event["pid"]),
        node=node,
        host=str(event.get("host") or ""),
        parent=event.get("ppid"),
        role=str(event.get("role") or "other"),
        rank=event.get("rank"),
        local_rank=event.get("local_rank"),
        world_size=event.get("world_size"),
        attempt=int(event.get("attempt") or 0),
        command=tuple(scrub_argv([str(word) for word in event.get("argv") or ()])),
        script=shorten(os.path.abspath(script)) if isinstance(script, str) and script != "-c" else None,
        started=_moment(event),
        milestones=(Milestone("start", _moment(event)),),
        variables=allowed_variables({str(k): str(v) for k, v in (event.get("variables") or {}).items()}),
    )


def _advance(record: ProcessRecord, kind: str, event: dict[str, Any], shorten: _Shortener) -> ProcessRecord:
    """Take one event into the record of its process."""
    if kind == "role":
        return dataclasses.replace(record, role=str(event["role"]))
    if kind == "torch":
        return dataclasses.replace(record, torch=str(event.get("version")))
    if kind == "milestone":
        made = Milestone(str(event["name"]), _moment(event))
        return dataclasses.replace(record, milestones=(*record.milestones, made))
    if kind == "init":
        rank = event.get("rank")
        own = rank if isinstance(rank, int) and rank >= 0 else record.rank
        return dataclasses.replace(
            record,
            role="rank" if record.role == "other" else record.role,
            rank=own,
            world_size=event.get("world_size") or record.world_size,
            backend=event.get("backend"),
        )
    if kind == "exit-call":
        return dataclasses.replace(
            record, exit_call=shorten.frames(event.get("frames")), exit_how=str(event.get("how"))
        )
    if kind == "end":
        return dataclasses.replace(record, clean_end=True, ended=_moment(event))
    return record


def _with_end(record: ProcessRecord, end: dict[str, Any] | None) -> ProcessRecord:
    if end is None:
        return record
    return dataclasses.replace(
        record, ended=_moment(end), exit_code=end.get("code"), signal=end.get("signal")
    )


def _exception(event: dict[str, Any], record: ProcessRecord, shorten: _Shortener) -> ExceptionRecord:
    def make(data: dict[str, Any], link: str | None) -> ExceptionRecord:
        return ExceptionRecord(
            pid=record.pid,
            type=str(data.get("type")),
            message=scrub(str(data.get("message") or ""))[:MESSAGE_LIMIT],
            frames=shorten.frames(data.get("frames")),
            node=record.node,
            host=record.host,
            rank=record.rank,
            attempt=record.attempt,
            link=link,
        )

    return dataclasses.replace(
        make(event, None),
        kind=str(event.get("kind") or "uncaught"),
        thread=event.get("thread"),
        worker=event.get("worker"),
        at=_moment(event),
        chain=tuple(make(each, str(each.get("link"))) for each in event.get("chain") or ()),
    )


def _wrapper(event: dict[str, Any], record: ProcessRecord) -> WrapperFacts:
    rows = tuple(
        WrappedParameter(
            index=int(row["index"]),
            name=str(row.get("name") or ""),
            module=str(row.get("module") or ""),
            module_class=str(row.get("class") or ""),
            forward_ran=row.get("forward_ran"),
            requires_grad=bool(row.get("requires_grad", True)),
            got_grad=row.get("grad"),
        )
        for row in event.get("parameters") or ()
    )
    return WrapperFacts(
        pid=record.pid,
        model=str(event.get("wrapper") or ""),
        parameters=rows,
        find_unused_parameters=event.get("find_unused_parameters"),
        static_graph=event.get("static_graph"),
        broadcast_buffers=event.get("broadcast_buffers"),
        buffers=tuple(str(name) for name in event.get("buffers") or ()),
        forwards=event.get("forwards"),
        node=record.node,
        host=record.host,
        rank=record.rank,
        attempt=record.attempt,
        at=_moment(event),
    )


def _read_fault(
    path: Path, node: int, shorten: _Shortener, by_pid: dict[int, ProcessRecord], found: Collected
) -> None:
    """Read what faulthandler wrote: a title, stacks with the current thread marked, extension modules."""
    text = read_last_words(path, 1 << 20)
    if not text:
        return
    lines = text.splitlines()
    title = next((line for line in lines if line.startswith("Fatal Python error")), lines[0])
    frames: list[Frame] = []
    current = False
    for line in lines:
        if _FAULT_THREAD.match(line):
            current = line.startswith("Current thread") and not frames
        frame = _FAULT_FRAME.match(line)
        if frame and current:
            frames.extend(shorten.frames([[frame["file"], frame["line"], frame["function"]]]))
    modules = next((line for line in lines if line.startswith("Extension modules:")), "")
    names = modules.partition(":")[2].rpartition(" (total")[0]
    pid = int(path.stem.partition("-")[0])
    record = by_pid.get(pid)
    found.crashes.append(
        CrashRecord(
            pid=pid,
            title=title,
            frames=tuple(frames),
            node=node,
            host=record.host if record else "",
            rank=record.rank if record else None,
            attempt=record.attempt if record else 0,
            modules=tuple(name.strip() for name in names.split(",") if name.strip()),
        )
    )


def _read_log(path: Path, by_pid: dict[int, ProcessRecord], found: Collected) -> None:
    """Stream one log through the table of texts; its last words go to the process's record."""
    parts = path.name.split(".")
    pid = int(parts[2]) if len(parts) > 3 and parts[2].isdigit() else None
    record = by_pid.get(pid) if pid is not None else None
    stream = "stderr" if ".stderr." in path.name else "stdout"
    kept: dict[str, TextMatch] = {}
    try:
        with path.open("rb") as file:
            rest = b""
            while chunk := file.read(CHUNK):
                cut = max(chunk.rfind(b"\n"), 0)
                _scan(rest + chunk[:cut], path, record, stream, kept)
                rest = chunk[cut:]
            _scan(rest, path, record, stream, kept)
    except OSError as problem:
        found.lost.append(f"{path.name} could not be read: {problem.strerror}")
    found.texts.extend(kept.values())
    if record is not None and stream == "stderr":
        words = read_last_words(path)
        place = found.processes.index(record)
        found.processes[place] = dataclasses.replace(record, last_words=scrub(words) if words else None)
        by_pid[record.pid] = found.processes[place]


def _scan(
    chunk: bytes, path: Path, record: ProcessRecord | None, stream: str, kept: dict[str, TextMatch]
) -> None:
    for _, line, hits in scan_chunk(chunk):
        for entry, groups in hits:
            known = kept.get(entry)
            if known is not None:
                kept[entry] = dataclasses.replace(known, count=known.count + 1)
            elif len(kept) < MATCHES_PER_LOG:
                kept[entry] = _match(entry, line, groups, record, stream, path.name)


def _match(
    entry: str, line: str, groups: dict[str, str], record: ProcessRecord | None, stream: str, file: str | None
) -> TextMatch:
    return TextMatch(
        entry=entry,
        text=scrub(line)[:MESSAGE_LIMIT],
        groups={key: scrub(value) for key, value in groups.items()},
        node=record.node if record else 0,
        host=record.host if record else "",
        pid=record.pid if record else None,
        rank=record.rank if record else None,
        attempt=record.attempt if record else 0,
        stream=stream,
        file=file,
    )


def _match_exceptions(found: Collected) -> None:
    """Let the table of texts look at the exceptions themselves; what a log quotes of them is the same thing."""
    by_pid = {record.pid: record for record in found.processes}
    for exception in found.exceptions:
        for entry, groups in match_text(f"{exception.type}: {exception.message}"):
            match = _match(
                entry, exception.message.splitlines()[0] if exception.message else exception.type, groups,
                by_pid.get(exception.pid), "exception", None,
            )  # fmt: skip
            found.texts.append(dataclasses.replace(match, at=exception.at))
