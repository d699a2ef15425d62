"""Locks on files, from the kernel's table."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from ddpdoctor.watch.live.locks import read_locks
from tests.watch.launching import wait_for

WAITS = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'w'), fcntl.LOCK_EX)"


def test_holder_and_waiter_of_a_lock_are_told_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "index.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        waiter = subprocess.Popen([sys.executable, "-c", WAITS, str(path)])
        try:
            wait_for(lambda: waiter.pid in read_locks([waiter.pid]), "it waits for the lock")
            found = read_locks([waiter.pid, os.getpid()])
        finally:
            waiter.kill()
            waiter.wait()
    (waits,) = found[waiter.pid]
    assert (waits.path, waits.held, waits.holders) == (str(path), False, (os.getpid(),))
    assert any(lock.path == str(path) and lock.held for lock in found[os.getpid()])


def test_a_table_that_cannot_be_read_or_is_odd_tells_nothing(tmp_path: Path) -> None:
    assert read_locks([1], tmp_path) == {}
    (tmp_path / "locks").write_text(
        "1: FLOCK\n2: -> POSIX\nx\n\n3: FLOCK ADVISORY WRITE nobody 0:0:0 0 EOF\n"
    )
    assert read_locks([1], tmp_path) == {}


def test_a_lock_whose_file_is_not_open_any_more_has_no_path(tmp_path: Path) -> None:
    (tmp_path / "locks").write_text(
        "1: FLOCK  ADVISORY  WRITE 17 fe:00:99 0 EOF\n1: -> FLOCK ADVISORY WRITE 18 fe:00:99 0 EOF\n"
    )
    found = read_locks([17, 18], tmp_path)
    assert [(lock.path, lock.held, lock.holders) for lock in (*found[17], *found[18])] == [
        (None, True, ()),
        (None, False, (17,)),
    ]
