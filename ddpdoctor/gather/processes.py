"""What the kernel says of one process."""

from __future__ import annotations

from pathlib import Path

from ddpdoctor.gather.sockets import PROC

STATE, PARENT, USER_TIME, SYSTEM_TIME, STARTED, CPU = 0, 1, 11, 12, 19, 36
"""Places in `read_stat`: fields 3, 4, 14, 15, 22 and 39 of proc(5)."""


def read_stat(pid: int, proc: Path = PROC) -> list[str]:
    """Return the fields of /proc/PID/stat behind the name, which may hold anything; none where the process is gone."""
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
