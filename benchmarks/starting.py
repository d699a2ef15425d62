"""A job's script that prints how long ago the command was started that it belongs to, in seconds."""

from __future__ import annotations

import os
import time


def read_stat(pid: int) -> tuple[int, float]:
    """Return the parent of a process, and when it started in seconds since boot (fields 4 and 22 of proc(5) stat)."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[1]), int(fields[19]) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Go up to the process that the benchmark, whose number is in BENCHMARK_PID, has started."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    parent, started = read_stat(os.getpid())
    while parent != int(os.environ["BENCHMARK_PID"]):
        parent, started = read_stat(parent)
    print(f"started after {now - started:.2f} s")


if __name__ == "__main__":
    main()
