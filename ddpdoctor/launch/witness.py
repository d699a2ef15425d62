"""What outlives a check that is killed: removes its directory, its processes and its semaphores.

Run as a script of its own, in a session of its own, with the directory and the mark as arguments; whatever kills the
command, alone or with its whole process group, leaves this one. It reads its standard input: a byte says that the
command has cleaned up itself, the end without one that it is gone. Imports only what Python has loaded anyhow.
"""

from __future__ import annotations

import os
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MARK = "DDPDOCTOR_CHECK"
"""Variable that all processes of a check inherit; its value is unique to the check."""
SEMAPHORES = "/dev/shm"
"""Where Linux keeps named semaphores (sem_overview(7)); those of multiprocessing begin with the mark."""
PATIENCE_S = 30.0
"""Seconds to wait for processes that are stuck in the kernel; what they hold cannot be taken from them."""


def main(directory: str, value: str) -> None:
    """Wait for the end of the command, and clean up where it could not."""
    if os.read(0, 1):
        return
    end = time.monotonic() + PATIENCE_S
    while kill_marked(value) and time.monotonic() < end:
        time.sleep(0.02)
    remove_tree(directory)
    for name in _list(SEMAPHORES):
        if name.startswith(f"sem.{value}"):
            _attempt(os.unlink, os.path.join(SEMAPHORES, name))


def kill_marked(value: str) -> int:
    """Kill every process that inherited the mark; return how many there are still."""
    found = 0
    mark = f"{MARK}={value}".encode()
    for name in _list("/proc"):
        if name.isdigit() and int(name) != os.getpid() and mark in _read_environ(name):
            found += 1
            _attempt(os.kill, int(name), 9)
    return found


def _read_environ(pid: str) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []  # gone, a zombie, or another user's


def remove_tree(path: str) -> None:
    """Remove a directory of this user and all that is in it; links are removed, not followed."""
    try:
        found = os.lstat(path)
    except OSError:
        return
    if not stat.S_ISDIR(found.st_mode):
        _attempt(os.unlink, path)
    elif found.st_uid == os.getuid():
        for name in _list(path):
            remove_tree(os.path.join(path, name))
        _attempt(os.rmdir, path)


def _list(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _attempt(act: Callable[..., object], *arguments: object) -> None:
    try:  # noqa: SIM105 (contextlib is not loaded yet, and would cost more than all the rest)
        act(*arguments)
    except OSError:
        pass


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
