"""What the kernel says of one process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ddpdoctor.gather.network.listeners import PROC

STATE, PARENT, USER_TIME, SYSTEM_TIME, STARTED, CPU = 0, 1, 11, 12, 19, 36
"""Places in `read_stat`: fields 3, 4, 14, 15, 22 and 39 of proc(5)."""
ANCESTORS = 32
"""Processes above this one that are looked at."""


def read_stat(pid: int, proc: Path = PROC) -> list[str]:
    """Return the fields of /proc/PID/stat behind the name, which may hold anything; none where the process is gone."""
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def list_ancestors(proc: Path = PROC) -> Iterator[int]:
    """Yield the processes above this one, the nearest first."""
    pid = os.getppid()
    for _ in range(ANCESTORS):
        stat = read_stat(pid, proc)
        if pid <= 1 or len(stat) <= STARTED:
            return
        yield pid
        pid = int(stat[PARENT])


def read_command(pid: int, proc: Path = PROC) -> list[str]:
    """Return the words of a command line; none where it cannot be read."""
    try:
        return (proc / str(pid) / "cmdline").read_bytes()[:65536].decode(errors="replace").split("\0")
    except OSError:
        return []
