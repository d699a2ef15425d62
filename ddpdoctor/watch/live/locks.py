"""Locks on files that processes hold or wait for, from the kernel's table: nothing is opened, nobody is asked."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ddpdoctor.evidence.standstill import FileLock
from ddpdoctor.gather.network.listeners import PROC
from ddpdoctor.gather.scrub import scrub_paths

MOST_LOCKS = 4
"""Most locks of each process that are kept, those first that it waits for."""
MOST_LINES = 10_000
MOST_FILES = 4096
"""Open files of a process that are compared with the file of a lock."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of /proc/locks."""

    number: str
    """Lines of those that wait have the number of the lock that they wait for."""
    waits: bool
    pid: int
    file: tuple[int, int, int]
    """Major and minor number of the device, inode."""


def read_locks(pids: Iterable[int], proc: Path = PROC) -> dict[int, tuple[FileLock, ...]]:
    """Return the locks that processes hold or wait for; those of which the kernel shows nothing are left out.

    Args:
        pids: of the processes.
        proc: where /proc is.
    """
    try:
        with open(proc / "locks", encoding="utf-8", errors="replace") as file:
            rows = [
                row
                for _, line in zip(range(MOST_LINES), file, strict=False)
                if (row := _read(line)) is not None
            ]
    except OSError:
        return {}
    found: dict[int, tuple[FileLock, ...]] = {}
    for pid in pids:
        mine = sorted((row for row in rows if row.pid == pid), key=lambda row: not row.waits)[:MOST_LOCKS]
        locks = []
        for row in mine:
            holders = tuple(
                each.pid for each in rows if each.number == row.number and not each.waits and each.pid > 0
            )
            path = _find_path(proc / str(pid) / "fd", row.file)
            locks.append(FileLock(path, not row.waits, holders if row.waits else ()))
        if locks:
            found[pid] = tuple(locks)
    return found


def _read(line: str) -> _Row | None:
    """Read ``1: -> FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF``."""
    words = line.split()
    waits = len(words) > 1 and words[1] == "->"
    words = [words[0], *words[2:]] if waits else words
    try:
        major, minor, inode = words[5].split(":")
        return _Row(words[0], waits, int(words[4]), (int(major, 16), int(minor, 16), int(inode)))
    except (IndexError, ValueError):
        return None


def _find_path(folder: Path, file: tuple[int, int, int]) -> str | None:
    """Return the path under which a process has a file open; None where that is not to be seen."""
    try:
        entries = os.listdir(folder)[:MOST_FILES]
    except OSError:
        return None
    for entry in entries:
        try:
            seen = os.stat(folder / entry)
            if (os.major(seen.st_dev), os.minor(seen.st_dev), seen.st_ino) == file:
                return scrub_paths(os.readlink(folder / entry))
        except OSError:
            continue
    return None
