"""Memory of a job's processes and what the kernel says of its out-of-memory killer, read from beside."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.gather.cgroups import find_cgroup_files

if TYPE_CHECKING:
    from ddpdoctor.evidence.job import MemoryRecord

SAMPLE_S = 1.0
"""How often resident sizes are read; one read takes some 30 microseconds for each process."""
_SIZE = re.compile(rb"^Vm(HWM|RSS):\s+(\d+) kB$", re.M)
"""The largest and the present resident size, as the kernel counts them (proc(5), status)."""
KERNEL_LINE = re.compile(
    r"(out of memory|oom-kill|oom_reaper|killed process|segfault|general protection|traps:)", re.I
)
"""What the kernel writes when it kills a process for memory (mm/oom_kill.c) or for a fault."""
KERNEL_LINES = 50


@dataclass(slots=True)
class MemoryWatch:
    """Samples the resident sizes of the watched processes, and the counters of the cgroup before and after.

    The processes are those that have a file in the run directory: to find them in the tree of processes, all of
    the machine's would have to be read each time.
    """

    folder: Path
    """Where the watched processes write (`RunDirectory.processes`)."""
    resident: dict[int, int] = field(default_factory=dict)
    """Pid -> bytes when last seen."""
    peak: dict[int, int] = field(default_factory=dict)
    shm: tuple[int, int] | None = None
    """Free and total bytes of /dev/shm when a process was last seen to be gone."""
    _gone: set[str] = field(default_factory=set)
    _next: float = 0.0
    _kills_before: int | None = None
    _started: float = field(default_factory=time.time)

    def begin(self) -> None:
        """Remember the counters as they are before the job."""
        self._kills_before = read_oom_kills()

    def look(self) -> None:
        """Take a sample if it is time for one."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + SAMPLE_S
        gone = len(self._gone)
        with contextlib.suppress(OSError):
            for name in os.listdir(self.folder):
                if name.endswith(".jsonl") and name not in self._gone:
                    self._look_at(name)
        if len(self._gone) > gone or self.shm is None:
            self._read_shm()

    def _look_at(self, name: str) -> None:
        pid, _, ticks = name.removesuffix(".jsonl").partition("-")
        sizes = _read_sizes(pid, ticks)
        if sizes is None:
            self._gone.add(name)
        else:
            self.resident[int(pid)], self.peak[int(pid)] = sizes

    def _read_shm(self) -> None:
        with contextlib.suppress(OSError):
            stat = os.statvfs("/dev/shm")
            self.shm = (stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize)

    def stop(self) -> None:
        """Take the last reading of /dev/shm."""
        self._read_shm()

    def record(self, node: int, host: str) -> MemoryRecord:
        """Return what was seen."""
        from ddpdoctor.evidence.job import MemoryRecord

        after = read_oom_kills()
        kills = None if after is None or self._kills_before is None else after - self._kills_before
        lines, note = read_kernel_lines(self._started)
        limit, peak = read_limits()
        return MemoryRecord(
            node=node,
            host=host,
            limit_bytes=limit,
            peak_bytes=peak,
            oom_kills=kills,
            kernel_lines=lines,
            kernel_note=note,
            shm_free_bytes=self.shm[0] if self.shm else None,
            shm_total_bytes=self.shm[1] if self.shm else None,
        )


def _read_sizes(pid: str, ticks: str) -> tuple[int, int] | None:
    """Return the resident size and its peak in bytes; None where the process has ended, or is another one by now."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            started = file.read().rpartition(b")")[2].split()[19]
        with open(f"/proc/{pid}/status", "rb") as file:
            found = {key: int(kib) << 10 for key, kib in _SIZE.findall(file.read())}
    except (OSError, IndexError):
        return None
    if started.decode() != ticks or not found:  # a zombie has no memory
        return None
    resident = found.get(b"RSS", 0)
    return resident, max(resident, found.get(b"HWM", 0))


def read_oom_kills() -> int | None:
    """Return how often the out-of-memory killer struck in this process's cgroup and those below it.

    v2: ``oom_kill`` in memory.events; v1: ``oom_kill`` in memory.oom_control. None where neither can be read.
    """
    for path in find_cgroup_files("memory", ("memory.events", "memory.oom_control")):
        match = re.search(r"^oom_kill (\d+)$", _read(path), re.M)
        if match:
            return int(match[1])
    return None


def read_limits() -> tuple[int | None, int | None]:
    """Return the memory limit and the peak of the cgroup, in bytes."""
    import psutil  # with the report's other needs, not before the launch

    limit = _first_number("memory", ("memory.max", "memory.limit_in_bytes"))
    peak = _first_number("memory", ("memory.peak", "memory.max_usage_in_bytes"))
    unlimited = limit is not None and limit > psutil.virtual_memory().total
    return (None if unlimited else limit), peak


def _first_number(controller: str, names: tuple[str, ...]) -> int | None:
    for path in find_cgroup_files(controller, names):
        text = _read(path).strip()
        if text.isdigit():
            return int(text)
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def read_kernel_lines(since: float) -> tuple[tuple[str, ...], str | None]:
    """Return lines of the kernel log since ``since`` (wall clock) on memory and faults, or why there are none."""
    try:
        done = subprocess.run(
            ["dmesg", "--time-format", "iso"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return (), f"the kernel log cannot be read: {problem}"
    if done.returncode:
        reason = done.stderr.strip().splitlines()
        return (), f"the kernel log cannot be read: {reason[0] if reason else 'dmesg failed'}"
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since - 1))
    lines = [line for line in done.stdout.splitlines() if line[:19] >= stamp and KERNEL_LINE.search(line)]
    return tuple(lines[-KERNEL_LINES:]), None
