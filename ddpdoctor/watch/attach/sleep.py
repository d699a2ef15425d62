"""How long the main thread of another process has not run, from the scheduler's own clock."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from ddpdoctor.gather.network.listeners import PROC
from ddpdoctor.gather.process_state import CPU, read_stat


def read_sleep(pids: Iterable[int], proc: Path = PROC) -> dict[int, float]:
    """Return seconds since the main thread of each process last ran, for those of which the kernel tells.

    The scheduler writes down when a thread last ran (``se.exec_start`` of /proc/PID/sched, in kernels that are built
    with CONFIG_SCHED_DEBUG) on the clock of the core that it ran on; clocks of two cores drift apart. So our own thread
    goes to that core for the moment in which it reads the time.
    """
    by_cpu: dict[int, dict[int, float]] = {}
    for pid in pids:
        cpu, last = _read_cpu(pid, proc), _read_last_run(proc / str(pid) / "sched")
        if cpu is not None and last:
            by_cpu.setdefault(cpu, {})[pid] = last
    found: dict[int, float] = {}
    try:
        allowed = os.sched_getaffinity(0)
    except OSError:
        return found
    try:
        for cpu, members in by_cpu.items():
            now = _read_clock(cpu, proc)
            found.update({pid: (now - last) / 1e3 for pid, last in members.items() if now and now >= last})
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, allowed)
    return found


def _read_clock(cpu: int, proc: Path) -> float | None:
    try:
        os.sched_setaffinity(0, (cpu,))
    except OSError:
        return None  # we may not run there
    return _read_last_run(proc / "thread-self" / "sched")


def _read_last_run(path: Path) -> float | None:
    """Return ``se.exec_start``: milliseconds."""
    try:
        for line in path.read_text(errors="replace").splitlines():
            if line.startswith("se.exec_start"):
                return float(line.rpartition(":")[2])
    except (OSError, ValueError):
        pass
    return None


def _read_cpu(pid: int, proc: Path) -> int | None:
    fields = read_stat(pid, proc)
    return int(fields[CPU]) if len(fields) > CPU else None
