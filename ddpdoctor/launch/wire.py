"""How evidence leaves a rank: a line of JSON per event, appended unbuffered to survive SIGKILL."""

from __future__ import annotations

import json
import os
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from ddpdoctor.evidence import Frame, RankError, encode
from ddpdoctor.gather.scrub import scrub

MESSAGE_LIMIT = 4000
"""Characters of an exception's text that are kept; torch's longest (mismatch reports) are about 2,000."""


class EventWriter:
    """Appends events of one process to its file.

    Each event is one ``write`` call on a descriptor opened with O_APPEND: a reader sees whole lines or
    nothing.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, event: str, **values: Any) -> None:
        """Append one event with the time of `time.monotonic` (one clock for all processes of a node)."""
        line = json.dumps({"event": event, "t": time.monotonic(), **values}, allow_nan=True)
        os.write(self._descriptor, line.encode() + b"\n")

    def emit(self, kind: str, row: Any) -> None:
        """Append one evidence dataclass."""
        self.write("row", kind=kind, data=encode(row))

    def error(self, rank: int, stage: str, problem: BaseException) -> None:
        """Append an exception that ended a stage."""
        self.emit("errors", describe_error(rank, stage, problem))


class EventReader:
    """Reads what an `EventWriter` has appended since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        """Return the new events; an absent file has none, a damaged line is passed over."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = []
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and "event" in event and "t" in event:
                events.append(event)
        return events


def describe_error(rank: int, stage: str, problem: BaseException) -> RankError:
    """Return the evidence form of an exception: its type, bounded text, and frames innermost first."""
    text = scrub(str(problem))
    if len(text) > MESSAGE_LIMIT:
        text = text[:MESSAGE_LIMIT] + " …"
    return RankError(rank, stage, type(problem).__name__, text, read_frames(problem.__traceback__))


def word_exception(problem: BaseException) -> str:
    """Return the type and the first line of an exception's text."""
    lines = str(problem).splitlines()
    return f"{type(problem).__name__}: {lines[0]}" if lines else type(problem).__name__


def read_frames(trace: TracebackType | None) -> tuple[Frame, ...]:
    """Return the frames of a traceback, innermost first."""
    frames = [Frame(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(trace)]
    return tuple(reversed(frames))
