"""Python stacks of other processes, taken with py-spy and merged over ranks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddpdoctor.evidence import Frame, RankSet, StackClass
from ddpdoctor.facts.ownership import TORCH, USER
from ddpdoctor.gather.process_state import read_stat

DUMP_LIMIT_S = 10.0
"""py-spy answers in 12-26 ms; 10 s means that the process cannot be read."""
STANDSTILL = ("T", "t", "D")
"""States in which a process does not run whatever its stack says: stopped, traced, uninterruptible (proc(5))."""
PARALLEL_DUMPS = 4
"""Each dump is one short process; more at once only compete for the same cores as the ranks."""
_CALLS = "torch/distributed/"
"""Part of the names of files from which torch makes collectives of its own, e.g. of checkpoints in the background."""
ATTEMPTS = 3
"""Attempts at a dump: one that is taken while the process runs may be torn, and the next one is not."""
PERMISSION_HINT = (
    "py-spy has no permission to read other processes here: run as root, or `sudo sysctl "
    "kernel.yama.ptrace_scope=0`, or give the container `--cap-add SYS_PTRACE`"
)


@dataclass(frozen=True, slots=True)
class Stack:
    """The main thread of one process, or the one that trains beside it."""

    pid: int
    frames: tuple[Frame, ...]
    """Innermost first; empty when it could not be read."""
    state: str | None = None
    """One-letter process state from /proc: where there are no frames, or where it explains that nothing moves."""
    problem: str | None = None
    thread: int = 0
    """Kernel's id of the thread, where it is not the main thread: that runs none of the user's code, this one does."""
    others: tuple[Frame, ...] = ()
    """Where each further thread stands that may make calls: it runs the user's code, or torch.distributed's."""


def find_py_spy() -> str | None:
    """Return the path of the py-spy program, next to this Python or on PATH."""
    beside = Path(sysconfig.get_path("scripts")) / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def take_stacks(
    pids: Iterable[int], *, limit_s: float = DUMP_LIMIT_S, pause: bool = False
) -> dict[int, Stack]:
    """Take the stack of the thread of each process that trains: the main thread, with few exceptions.

    Args:
        pids: of the processes.
        limit_s: for one of them.
        pause: stop each process for the few milliseconds that it takes. Without, it goes on running meanwhile
            (``--nonblocking``), and a stack that cannot be read because it changed is taken again.
    """
    program = find_py_spy()
    if program is None:
        return {pid: _unreadable(pid, "py-spy is not installed: pip install py-spy") for pid in pids}
    with ThreadPoolExecutor(max_workers=PARALLEL_DUMPS) as pool:
        return {stack.pid: stack for stack in pool.map(lambda pid: _dump(program, pid, limit_s, pause), pids)}


def is_refused(text: str) -> bool:
    """Whether py-spy says that it may not read a process."""
    return "ermission" in text or "Operation not permitted" in text


def merge_stacks(stacks: Mapping[int, Stack]) -> tuple[StackClass, ...]:
    """Join ranks that stand at the same place.

    Args:
        stacks: rank -> stack.

    Returns:
        One class per place, the largest first.
    """
    groups: dict[tuple[tuple[Frame, ...], str | None], list[int]] = {}
    for rank, stack in stacks.items():
        groups.setdefault((stack.frames, stack.state), []).append(rank)
    classes = [StackClass(RankSet(ranks), frames, state) for (frames, state), ranks in groups.items()]
    return tuple(sorted(classes, key=lambda each: (-len(each.ranks), next(iter(each.ranks)))))


def name_problem(stacks: Mapping[int, Stack]) -> str | None:
    """Return why stacks are missing, once, or None when all were read."""
    return next((stack.problem for stack in stacks.values() if stack.problem), None)


def _dump(program: str, pid: int, limit_s: float, pause: bool) -> Stack:
    command = [program, "dump", *([] if pause else ["--nonblocking"]), "--json", "--pid", str(pid)]
    stack = _unreadable(pid, "py-spy: not tried")
    for _ in range(ATTEMPTS):
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=limit_s, stdin=subprocess.DEVNULL, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as problem:
            return _unreadable(pid, f"py-spy: {problem}")
        if not done.returncode:
            stack = _parse(pid, done.stdout)
            if stack.frames:
                return stack
            continue
        text = done.stderr.decode(errors="replace").strip()
        if is_refused(text):
            return _unreadable(pid, PERMISSION_HINT)
        stack = _unreadable(pid, f"py-spy: {text.splitlines()[0] if text else 'failed'}")
        if stack.state is None:
            return stack  # it is gone
    return stack


def _parse(pid: int, text: bytes) -> Stack:
    try:
        threads = json.loads(text)
        main = next((t for t in threads if t.get("thread_name") == "MainThread"), threads[0])
        frames = _read_frames(main)
        thread, chosen = 0, main
        if not _may_train(frames):
            beside = _find_beside([each for each in threads if each is not main])
            if beside is not None:
                chosen, thread, frames = beside
        others = tuple(_list_callers(each for each in threads if each is not chosen))
    except (ValueError, KeyError, IndexError, TypeError) as problem:
        return _unreadable(pid, f"py-spy printed nothing readable: {problem}")
    if not frames:
        return _unreadable(pid, "py-spy saw no Python frame")
    state = _read_state(pid)
    shown = state if state in STANDSTILL else None
    return Stack(pid, frames, shown, thread=thread, others=others)


def _read_frames(thread: Mapping[str, Any]) -> tuple[Frame, ...]:
    return tuple(
        Frame(str(f.get("filename", "?")), int(f.get("line") or 0), _plain_name(str(f.get("name", "?"))))
        for f in thread["frames"]
    )


def _may_train(main: Sequence[Frame]) -> bool:
    """Whether the main thread runs anything of the user's or of torch; also where nothing of it was read."""
    return not main or any(frame.whose in (USER, TORCH) for frame in main)


def _list_callers(threads: Iterable[Mapping[str, Any]]) -> Iterator[Frame]:
    """Yield the innermost telling frame of each thread that may make calls that others wait for."""
    for thread in threads:
        frames = _read_frames(thread)
        own = next((frame for frame in frames if frame.is_user), None)
        if own is not None or any(_CALLS in frame.file for frame in frames):
            yield own or frames[0]


def _find_beside(
    others: Sequence[Mapping[str, Any]],
) -> tuple[Mapping[str, Any], int, tuple[Frame, ...]] | None:
    """Return the thread that trains where the main thread does not: the only one that runs the user's code.

    Ray's workers serve calls in the main thread and run the training function beside it.
    """
    stacks = [(each, int(each.get("os_thread_id") or 0), _read_frames(each)) for each in others]
    training = [each for each in stacks if each[1] and any(frame.is_user for frame in each[2])]
    return training[0] if len(training) == 1 else None


def _plain_name(name: str) -> str:
    """Return a function's own name: from Python 3.11 on py-spy gives ``Class.method`` and ``outer.<locals>.inner``."""
    return name.rpartition(".")[2]


def _unreadable(pid: int, problem: str) -> Stack:
    return Stack(pid, (), _read_state(pid), problem)


def _read_state(pid: int) -> str | None:
    return next(iter(read_stat(pid)), None)
