"""The private directory of one check, and the witness that removes it where the command is killed."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ddpdoctor.launch import witness

LONGEST_BASE = 60
"""Unix sockets have paths of at most 107 bytes (unix(7)); ours need up to 42 below the base directory."""
LEAVING_S = 5.0
"""Seconds for the witness to end once it was told that nothing is left to do, which takes a millisecond."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where one check keeps its files, and who watches over them."""

    path: Path
    name: str
    """Unique to this check: begins the names of its semaphores, and marks its processes."""
    witness_pid: int | None


@contextlib.contextmanager
def work_directory() -> Iterator[Workplace]:
    """Give a private directory with a short path, and remove it afterwards, also where this process is killed.

    The witness knows the name before the directory is made: there is no moment at which nobody would remove it.
    """
    base = tempfile.gettempdir()
    name = f"ddpdoctor-{secrets.token_hex(6)}"
    path = Path(base if len(base) <= LONGEST_BASE else "/tmp", name)
    watching = _start_witness(path, name)
    before = os.environ.get(witness.MARK)
    os.environ[witness.MARK] = name
    try:
        path.mkdir(mode=0o700)
        yield Workplace(path, name, None if watching is None else watching.pid)
    finally:
        if before is None:
            os.environ.pop(witness.MARK, None)
        else:
            os.environ[witness.MARK] = before
        shutil.rmtree(path, ignore_errors=True)
        if watching is not None:
            _dismiss(watching)


def _start_witness(path: Path, name: str) -> subprocess.Popen[bytes] | None:
    """Start the witness; a machine that has no room for it is examined without."""
    with contextlib.suppress(OSError):
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(witness.__file__), str(path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
    return None


def _dismiss(watching: subprocess.Popen[bytes]) -> None:
    """Let the witness end: nothing is left to do for it."""
    if watching.stdin is not None:
        with contextlib.suppress(OSError):
            watching.stdin.write(b".")
            watching.stdin.flush()
            watching.stdin.close()
    try:
        watching.wait(LEAVING_S)
    except subprocess.TimeoutExpired:
        watching.kill()
        watching.wait()
