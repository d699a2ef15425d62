"""The folder in which the tasks of one job meet: ``ddpdoctor-runs/slurm-1234.0/``, with a run directory for each task.

    task-2/             the run directory of task 2, made by it and by nobody else (0700)
    task-2/task.json    who it is, written when it begins
    task-2/alive        touched while it lives
    task-2/end.json     what it saw, written when its part of the job has ended
    judge/              made by the task that judges for all
    done                the verdict was given
    stop                why the job is ended, for tasks that do not move

Tasks may be on hosts that see each other's changes late (NFS keeps what it knows of a folder for up to a minute): who
looks makes a change of its own first, after which the client has to ask again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import stat
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddpdoctor.gather import machine
from ddpdoctor.gather.process_state import STARTED, STATE, read_stat
from ddpdoctor.gather.regular import open_regular
from ddpdoctor.watch.keeping import anchor, write_below
from ddpdoctor.watch.rundir import RUNS
from ddpdoctor.watch.tasks.identity import Task

GENERATIONS = 1000
"""Runs of one job one after the other: a script may call `ddpdoctor run` several times."""
ABOUT_BYTES = 65_536
BEAT_S = 2.0
BEATS_A_SECOND = 50
"""Signs of life per second of all tasks together: with many tasks, each gives its own more rarely."""
SILENT_BEATS = 5
"""Signs of life that may be missing: a full machine is late, and so is NFS."""
_SLOT = re.compile(r"task-(0|[1-9][0-9]{0,5})")


class UnsafeFolder(OSError):
    """The folder is another user's, or others may write into it."""


@dataclass(frozen=True, slots=True)
class About:
    """What a task says of itself."""

    number: int
    host: str = ""
    place: str = ""
    """Equal for tasks that see each other's processes."""
    pid: int = 0
    ticks: int = 0
    local: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """A task as another one sees it."""

    about: About
    state: str
    """ended; alive; gone: without a word; absent: never begun."""


def identify_place() -> str:
    """Return what is equal for processes that see each other under the same numbers."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return f"{machine.boot_id() or socket.gethostname()}/{socket.gethostname()}/{space}"


class Folder:
    """The folder of one job, and this task's place in it.

    Args:
        path: of the folder.
        descriptor: of the folder; closed when the process ends.
        task: this one.
    """

    def __init__(self, path: Path, descriptor: int, task: Task) -> None:
        self.path, self.task = path, task
        self.descriptor = descriptor
        self.about = About(
            task.number,
            socket.gethostname(),
            identify_place(),
            os.getpid(),
            _ticks(os.getpid()) or 0,
            task.local,
        )
        self._known: dict[int, About] = {}
        self._beats: dict[int, tuple[int, float]] = {}
        """Task -> the time of its last sign of life by its file system, and when that was seen to be new here."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="ddpdoctor-task", daemon=True)
        self.lost: list[str] = []

    @property
    def kept(self) -> Path:
        """The folder by its descriptor: the job may rename what leads to it."""
        return anchor(self.descriptor)

    @property
    def slot(self) -> str:
        """Name of this task's own run directory."""
        return f"task-{self.task.number}"

    @property
    def beat_s(self) -> float:
        """Seconds between two signs of life of this task."""
        return max(BEAT_S, self.task.count / BEATS_A_SECOND)

    def start(self) -> None:
        """Say who this is, and give signs of life from now on.

        Raises:
            OSError: it cannot be written.
        """
        self.introduce()
        self._thread.start()

    def introduce(self) -> None:
        """Say who this is.

        Raises:
            OSError: it cannot be written.
        """
        about = {name: getattr(self.about, name) for name in About.__slots__}
        write_below(self.kept, f"{self.slot}/task.json", json.dumps(about).encode())
        write_below(self.kept, f"{self.slot}/alive", b"")

    def close(self) -> None:
        """Give no more signs of life."""
        self._stop.set()

    def _beat(self) -> None:
        while not self._stop.wait(self.beat_s):
            with contextlib.suppress(OSError):
                os.utime(self.kept / self.slot / "alive")

    def refresh(self) -> None:
        """Have what others changed seen here, where the file system keeps what it knew."""
        name = f".{self.slot}.{os.urandom(4).hex()}"
        with contextlib.suppress(OSError):
            os.mkdir(name, 0o700, dir_fd=self.descriptor)
            os.rmdir(name, dir_fd=self.descriptor)

    def list_slots(self) -> list[int]:
        """Return the tasks that have begun, by number."""
        try:
            names = os.listdir(self.descriptor)
        except OSError:
            return []
        found = (_SLOT.fullmatch(name) for name in names)
        return sorted(number for each in found if each and (number := int(each[1])) < self.task.count)

    def look(self) -> list[Seen]:
        """Return how all tasks stand; those that have not begun are ``absent``."""
        begun = self.list_slots()
        seen = [self._look_at(number) for number in begun]
        absent = set(range(self.task.count)).difference(begun)
        return sorted(
            [*seen, *(Seen(About(number), "absent") for number in absent)], key=lambda each: each.about.number
        )

    def _look_at(self, number: int) -> Seen:
        about = self.read_about(number)
        if os.path.lexists(self.kept / f"task-{number}" / "end.json"):
            return Seen(about, "ended")
        return Seen(about, "alive" if self.is_alive(number) else "gone")

    def is_alive(self, number: int) -> bool:
        """Whether the command of a task lives, whether or not its part of the job has ended."""
        about = self.read_about(number)
        if about.place == self.about.place and about.pid:
            return _ticks(about.pid) == about.ticks
        return self._hear(number) < SILENT_BEATS * self.beat_s

    def measure_silence(self, number: int) -> float:
        """Return since when a task gave no sign of life; 0 where its process is seen from here."""
        about = self.read_about(number)
        return 0.0 if about.place == self.about.place and about.pid else self._hear(number)

    def _hear(self, number: int) -> float:
        """Return since when a task on another host gave no sign of life; no clock is compared."""
        try:
            moment = os.stat(self.kept / f"task-{number}" / "alive").st_mtime_ns
        except OSError:
            moment = 0
        now = time.monotonic()
        known = self._beats.get(number)
        if known is None or known[0] != moment:
            self._beats[number] = known = (moment, now)
        return now - known[1]

    def read_about(self, number: int) -> About:
        """Return what a task says of itself, as far as it can be read."""
        known = self._known.get(number)
        if known is None:
            known = _read_about(self.kept / f"task-{number}" / "task.json", number)
            if known.place:
                self._known[number] = known
        return known

    def leads(self) -> bool:
        """Whether this is the first task that has begun and not ended: it speaks for all while the job lives."""
        return not any(self._is_going(number) for number in range(self.task.number))

    def has_living_others(self) -> bool:
        """Whether another task has not ended; asked of the next ones first, so that not all look at the same."""
        first = self.task.number + 1
        return any(
            self._is_going(number % self.task.count) for number in range(first, first + self.task.count - 1)
        )

    def _is_going(self, number: int) -> bool:
        return os.path.lexists(self.kept / f"task-{number}") and self._look_at(number).state == "alive"

    def remove(self) -> None:
        """Take this task's place away again: its job did not begin."""
        self.close()
        with contextlib.suppress(OSError):
            for name in ("task.json", "alive"):
                os.unlink(self.kept / self.slot / name)
        above = (self.path.parent,) if self.path.parent.name == RUNS else ()
        for folder in (self.path / self.slot, self.path, *above):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def take(self, name: str) -> bool:
        """Make a folder that only one task can make; return whether it was this one."""
        try:
            os.mkdir(name, 0o700, dir_fd=self.descriptor)
        except OSError:
            return False
        with contextlib.suppress(OSError):
            write_below(self.kept, f"{name}/task", str(self.task.number).encode())
        return True

    def release(self, name: str) -> None:
        """Give a folder back that its maker left behind; of several that try one succeeds."""
        with contextlib.suppress(OSError):
            os.rename(name, f".{name}.{self.slot}", src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def taken_by(self, name: str) -> int | None:
        """Return the task that made a folder; None where nobody has, or where it is just being made."""
        text = read_some(self.kept / name / "task", 16) or b""
        return int(text) if text.isdigit() and int(text) < self.task.count else None

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return os.path.lexists(self.kept / name)


def read_some(path: Path, most: int) -> bytes | None:
    """Return the beginning of an ordinary file; None where there is none."""
    try:
        with open_regular(path) as file:
            return file.read(most)
    except OSError:
        return None


def _read_about(path: Path, number: int) -> About:
    try:
        found: dict[str, Any] = json.loads(read_some(path, ABOUT_BYTES) or b"{}")
        local = found.get("local")
        return About(
            number,
            str(found["host"])[:255],
            str(found["place"])[:500],
            int(found["pid"]),
            int(found["ticks"]),
            local if type(local) is int else None,
        )
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError):
        return About(number)


def _ticks(pid: int) -> int | None:
    fields = read_stat(pid)
    if len(fields) <= STARTED or fields[STATE] in ("Z", "X"):
        return None
    return int(fields[STARTED])


def open_job(base: Path, task: Task) -> Folder:
    """Make or find the folder of a job, with a new run directory for this task in it.

    A task whose place is taken comes again, or is of a later job of the same name: both mean the next folder.

    Args:
        base: where runs are kept.
        task: this one.

    Raises:
        UnsafeFolder: it is not ours alone.
        OSError: it cannot be made.
    """
    for again in range(GENERATIONS):
        path = base / (task.job if not again else f"{task.job}-{again + 1}")
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700, parents=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            require_own(os.fstat(descriptor), path)
            if task.lasting or not os.path.lexists(anchor(descriptor) / "done"):
                os.mkdir(f"task-{task.number}", 0o700, dir_fd=descriptor)
                return Folder(path.resolve(), descriptor, task)
        except FileExistsError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise OSError(f"{base / task.job} has been used {GENERATIONS} times")


def require_own(found: os.stat_result, path: Path) -> None:
    """Refuse a folder into which somebody else may have put something.

    Raises:
        UnsafeFolder: it is another user's, or others may write into it.
    """
    if found.st_uid != os.geteuid():
        raise UnsafeFolder(f"{path} belongs to another user")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnsafeFolder(f"other users may write to {path}")
