"""Native frames of processes, taken with py-spy: each process is stopped for up to a second, so only where it pays."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from ddpdoctor.evidence.native import NAME_LIMIT, UNKNOWN, NativeFrame, shorten_name
from ddpdoctor.evidence.standstill import Standstill
from ddpdoctor.watch.live.stacks import PARALLEL_DUMPS, PERMISSION_HINT, find_py_spy, is_refused

LIMIT_S = 60.0
"""Seconds for one process. py-spy reads torch's symbols in some 0.6 s; where it is killed, the process may stay
stopped."""
MOST_RANKS = 8
"""Most ranks of one job that `run` looks into unasked."""
MOST_FRAMES = 24
_UNSUPPORTED = re.compile(
    r"not supported on your platform|(unexpected|wasn't expected).*--native|--native.*wasn't"
)
_BUILT_FOR = re.compile(r"\.(cpython-[\w-]+|abi3)(?=\.so$)")
"""What Python puts into the names of its extensions."""


@dataclass(frozen=True, slots=True)
class Native:
    """The main thread of one process below its innermost Python line."""

    pid: int
    frames: tuple[NativeFrame, ...] = ()
    """Innermost first; empty where it could not be read, or stood in Python code."""
    problem: str | None = None


def take_native(pids: Iterable[int], *, limit_s: float = LIMIT_S) -> dict[int, Native]:
    """Take the native frames of the main thread of each process, which is stopped meanwhile.

    Args:
        pids: of the processes.
        limit_s: for one of them.
    """
    program = find_py_spy()
    if program is None:
        return {pid: Native(pid, problem="py-spy is not installed: pip install py-spy") for pid in pids}
    with ThreadPoolExecutor(max_workers=PARALLEL_DUMPS) as pool:
        return {found.pid: found for found in pool.map(lambda pid: _dump(program, pid, limit_s), pids)}


def look_inside(look: Standstill) -> Standstill:
    """Return a look, whose ranks are all of this machine, with the native frames of those that live."""
    living = {(stand.rank, stand.pid) for stand in look.stands if stand.alive and stand.pid}
    return _complete(look, _take(living))


class Insight:
    """Looks inside of each rank of a job once at most, for that stops it."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], Native] = {}

    def add(self, look: Standstill, ranks: Iterable[tuple[int, int]]) -> Standstill:
        """Return a look with native frames.

        Args:
            look: at ranks, of which others may be on other nodes.
            ranks: number and process id of those of this machine to look into.
        """
        fresh = sorted(set(ranks) - self._known.keys())[: max(0, MOST_RANKS - len(self._known))]
        self._known.update(_take(fresh))
        return _complete(look, self._known)

    def forget(self) -> None:
        """Some have moved: what was seen says nothing any more."""
        self._known = {rank: Native(rank[1]) for rank in self._known}


def _take(ranks: Collection[tuple[int, int]]) -> dict[tuple[int, int], Native]:
    found = take_native(pid for _, pid in ranks)
    return {(rank, pid): found[pid] for rank, pid in ranks}


def _complete(look: Standstill, found: Mapping[tuple[int, int], Native]) -> Standstill:
    stands = []
    for stand in look.stands:
        native = found.get((stand.rank, stand.pid))
        if native is not None:
            stand = replace(stand, native=native.frames, note=stand.note or native.problem)
        stands.append(stand)
    return replace(look, stands=tuple(stands))


def _dump(program: str, pid: int, limit_s: float) -> Native:
    command = [program, "dump", "--native", "--json", "--pid", str(pid)]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=limit_s, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return Native(pid, problem=f"py-spy: {problem}")
    if not done.returncode:
        return _parse(pid, done.stdout)
    text = done.stderr.decode(errors="replace").strip()
    if _UNSUPPORTED.search(text):
        return Native(
            pid, problem=f"py-spy cannot sample native frames on this machine ({platform.machine()})"
        )
    if is_refused(text):
        return Native(pid, problem=PERMISSION_HINT)
    return Native(pid, problem=f"py-spy --native: {text.splitlines()[0] if text else 'failed'}")


def _parse(pid: int, text: bytes) -> Native:
    try:
        threads = json.loads(text)
        # In another process namespace the ids differ, and a thread that has left Python has no name.
        main = next(
            (t for t in threads if t.get("os_thread_id") == pid),
            next((t for t in threads if t.get("thread_name") == "MainThread"), threads[0]),
        )
        return Native(pid, tuple(_read_frames(main["frames"])))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as problem:
        return Native(pid, problem=f"py-spy printed nothing readable: {problem}")


def _read_frames(rows: Iterable[dict[str, Any]]) -> Iterable[NativeFrame]:
    for number, row in enumerate(rows):
        module = row.get("module")
        if not module or number >= MOST_FRAMES:  # Python's own frames have none
            return
        file, line = str(row.get("filename", "")), row.get("line")
        place = f"{os.path.basename(file)}:{int(line)}" if line and file != module else None
        yield NativeFrame(shorten_name(str(row.get("name", UNKNOWN))), _name_library(str(module)), place)


def _name_library(module: str) -> str:
    """Return the file name of a library; ``python/fcntl.so`` for the extensions of Python itself."""
    name = _BUILT_FOR.sub("", os.path.basename(module))[:NAME_LIMIT]
    return f"python/{name}" if "/lib-dynload/" in module else name
