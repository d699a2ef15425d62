"""Run one command under plain torchrun and under ``ddpdoctor run``, side by side."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.watch.injecting import environment

DOCTOR = (sys.executable, "-m", "ddpdoctor", "run")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
LIMIT_S = 240.0
"""For anything that a test waits for, on a busy machine."""


@dataclass(frozen=True)
class Ended:
    """How a command ended, as a shell sees it."""

    code: int
    stdout: bytes
    stderr: bytes


def environ(folder: Path, **more: str) -> dict[str, str]:
    """Variables of a job whose evidence goes below ``folder``; OUT is where its ranks leave what they saw."""
    return {**environment(None), "OUT": str(folder), **more}


def start(command: Sequence[str], folder: Path, cwd: Path, **options: object) -> subprocess.Popen[bytes]:
    """Start a command as the leader of a process group of its own."""
    folder.mkdir(exist_ok=True)
    given: dict[str, object] = {
        "cwd": cwd,
        "env": environ(folder),
        "stdin": subprocess.DEVNULL,
        "stdout": (folder / "stdout").open("wb"),
        "stderr": (folder / "stderr").open("wb"),
        "start_new_session": True,
        **options,
    }
    return subprocess.Popen(list(command), **given)  # type: ignore[call-overload, no-any-return]  # options of Popen


def finish(process: subprocess.Popen[bytes], folder: Path) -> Ended:
    """Wait for a command of `start`."""
    try:
        code = process.wait(LIMIT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    code = code if code >= 0 else 128 - code
    return Ended(code, (folder / "stdout").read_bytes(), (folder / "stderr").read_bytes())


def doctor(folder: Path, *arguments: str) -> list[str]:
    """The command line of ``run``, its evidence below ``folder``."""
    return [*DOCTOR, "--run-dir", str(folder / "run"), *arguments]


def pair(
    tmp_path: Path,
    plain: Sequence[str],
    watched: Sequence[str],
    act: Callable[[subprocess.Popen[bytes], Path], None] | None = None,
    **options: object,
) -> tuple[Ended, Ended]:
    """Run both at once from the same folder.

    Args:
        tmp_path: working directory; ``plain`` and ``watched`` in it are what each leaves.
        plain: whole command line without us.
        watched: arguments of ``run``.
        act: what is done to each while it runs, given the process and its folder.
        options: of Popen.
    """
    folders = (tmp_path / "plain", tmp_path / "watched")
    commands = (list(plain), doctor(folders[1], *watched))
    started = [start(c, f, tmp_path, **options) for c, f in zip(commands, folders, strict=True)]
    if act is not None:
        for process, folder in zip(started, folders, strict=True):
            act(process, folder)
    ended = [finish(p, f) for p, f in zip(started, folders, strict=True)]
    return ended[0], ended[1]


def torchrun_pair(
    tmp_path: Path,
    *arguments: str,
    act: Callable[[subprocess.Popen[bytes], Path], None] | None = None,
    **options: object,
) -> tuple[Ended, Ended]:
    """The same arguments for torchrun and for ``run``."""
    given = ["--standalone", *arguments]
    return pair(tmp_path, [*TORCHRUN, *given], given, act, **options)


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until something is so.

    Raises:
        AssertionError: it never was.
    """
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def scripts(name: str) -> str:
    """A console script beside this Python."""
    path = Path(sys.executable).with_name(name)
    return str(path) if path.exists() else str(shutil.which(name))
