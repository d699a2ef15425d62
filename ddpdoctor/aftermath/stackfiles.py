"""Stacks of ranks in files: what ``py-spy dump`` prints, and faulthandler's dumps of a process that lives."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from ddpdoctor.aftermath.lines import plain
from ddpdoctor.evidence import Frame
from ddpdoctor.evidence.native import NativeFrame, shorten_name
from ddpdoctor.facts.ownership import PACKAGE, PYTHON, TORCH
from ddpdoctor.gather.opening import open_log, read_some
from ddpdoctor.gather.recorder.read import read_rank

SIZE_LIMIT = 16 << 20
"""Bytes of one file; a process of 500 threads takes 0.5 MB."""
MOST_FRAMES, MOST_PROCESSES = 200, 20_000

_PROCESS = re.compile(r"^Process (?P<pid>\d{1,10}): (?P<command>.*)$")
_SPY_THREAD = re.compile(
    r'^Thread (?:\d{1,20}|0x[0-9A-Fa-f]{1,16}) \((?P<state>[^)]{1,40})\)(?:: "(?P<name>[^"]{0,200})")?$'
)
_SPY_FRAME = re.compile(r"^ {4}(?P<function>.{1,300}) \((?P<file>[^()]{1,1000}):(?P<line>\d{1,9})\)$")
_SPY_NATIVE = re.compile(r"^ {4}(?P<function>.{1,1000}) \((?P<file>[^():]{1,1000})\)$")
_NATIVE_SOURCE = re.compile(r"\.(c|cc|cpp|cxx|cu|h|hh|hpp|cuh|inc|rs|pyx)$")
_FAULT_THREAD = re.compile(
    r"^(?P<current>Current thread|Thread) 0x[0-9a-f]{1,16}(?: \[.{0,100}\])? \(most recent call first\):"
)
_FAULT_FRAME = re.compile(
    r'^ {2}File "(?P<file>[^"\n]{1,1000})", line (?P<line>\d{1,9}) in (?P<function>.{1,300})$'
)
_TIMEOUT = re.compile(r"^Timeout \((?:\d{1,5}:){2}\d\d(?:\.\d{1,6})?\)!$")


_PACKAGES = (
    "torch",
    "torchvision",
    "torchaudio",
    "numpy",
    "accelerate",
    "transformers",
    "lightning",
    "deepspeed",
)
"""Libraries that trainings stand in."""


@dataclass(frozen=True, slots=True)
class StackFile:
    """The main thread of one process, as somebody wrote it down."""

    name: str
    rank: int | None
    pid: int
    frames: tuple[Frame, ...]
    """Innermost first."""
    before: tuple[Frame, ...] = ()
    """Frames in the dump before, innermost first, where the file has several."""
    native: tuple[NativeFrame, ...] = ()
    """Frames below the innermost line of Python, from ``py-spy dump --native``."""


def looks_like_stacks(head: bytes) -> bool:
    """Whether a file begins like a dump of stacks; a log in which one stands is a log."""
    first = next((line for line in head[:4096].decode("utf-8", "replace").splitlines() if line.strip()), "")
    if _TIMEOUT.match(first) or _FAULT_THREAD.match(first):
        return b"Fatal Python error" not in head
    return _PROCESS.match(first) is not None and (b"\nPython v" in head or b"\nThread " in head)


def read_stacks(path: Path, name: str) -> list[StackFile]:
    """Return the processes of a file.

    Raises:
        OSError, EOFError, zlib.error, lzma.LZMAError: it cannot be read.
    """
    with open_log(path) as stream:
        text = _plain_lines(read_some(stream, SIZE_LIMIT))
    dumps = _read_processes(text)
    by_process: dict[int, list[_Thread]] = {}
    for pid, thread in dumps:
        if thread.frames or thread.native:
            by_process.setdefault(pid, []).append(thread)
    rank = read_rank(path) if len(by_process) == 1 else None
    return [
        StackFile(
            name,
            rank,
            pid,
            tuple(samples[-1].frames),
            tuple(samples[-2].frames) if len(samples) > 1 else (),
            tuple(samples[-1].native),
        )
        for pid, samples in by_process.items()
    ]


def _plain_lines(data: bytes) -> list[str]:
    """Return the lines of a text without terminal control."""
    return [plain(line) for line in data.decode("utf-8", "replace").splitlines()]


@dataclass(slots=True)
class _Thread:
    main: bool
    frames: list[Frame] = field(default_factory=list)
    native: list[NativeFrame] = field(default_factory=list)

    def add(self, line: str) -> None:
        """Take a line that may be a frame."""
        native = _SPY_NATIVE.match(line)
        frame = _FAULT_FRAME.match(line) or _SPY_FRAME.match(line)
        if native is None and frame is not None and _NATIVE_SOURCE.search(frame["file"]):
            native = frame
        if native is not None:
            if not self.frames:  # what stands below Python's own lines started it
                library = os.path.basename(native["file"])
                self.native.append(NativeFrame(shorten_name(native["function"]), library))
        elif frame is not None:
            owner = _find_owner(frame["file"]) if frame.re is not _FAULT_FRAME else None
            self.frames.append(Frame(frame["file"], int(frame["line"]), frame["function"], owner=owner))


def _read_processes(lines: list[str]) -> list[tuple[int, _Thread]]:
    """Return process id (0 where none is told) and main thread of each dump, in order."""
    found: list[tuple[int, _Thread]] = []
    threads: list[_Thread] = []
    pid = 0

    def close() -> None:
        if threads and len(found) < MOST_PROCESSES:
            # faulthandler lists the main thread last, py-spy names it.
            found.append((pid, next((each for each in threads if each.main), threads[-1])))
        threads.clear()

    for line in lines:
        process = _PROCESS.match(line)
        if process is not None or _TIMEOUT.match(line):
            close()
            pid = int(process["pid"]) if process is not None else pid
        elif fault := _FAULT_THREAD.match(line):
            threads.append(_Thread(fault["current"] == "Current thread"))
        elif spy := _SPY_THREAD.match(line):
            threads.append(_Thread(spy["name"] == "MainThread"))
        elif threads and max(len(threads[-1].frames), len(threads[-1].native)) < MOST_FRAMES:
            threads[-1].add(line)
    close()
    return found


def _find_owner(file: str) -> str | None:
    """Return whose a file is that py-spy names without the folder of its library; None where its path says it."""
    first = file.partition("/")[0].removesuffix(".py")
    if file.startswith(("/", "<")):
        return None
    if first in sys.stdlib_module_names:
        return PYTHON
    if "/" not in file or first not in _PACKAGES:
        return None
    return TORCH if first == "torch" else PACKAGE
