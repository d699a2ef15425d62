"""Ending a job of ours that takes too long: asked first, then killed, and nothing of it left behind."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import time
from pathlib import Path

from ddpdoctor.gather.process_state import STARTED, read_stat

GRACE_S = 45.0
"""How long a job that was told to end may take: torchrun itself gives its ranks 30 s (--shutdown-timeout)."""

_NAME = re.compile(r"([0-9]{1,9})-([0-9]{1,18})")


class Limit:
    """The time that a job may take.

    Args:
        child: its launcher.
        processes: folder in which each watched process of it has a file, named by its id and start.
        seconds: from now; None for no limit.
    """

    def __init__(self, child: subprocess.Popen[bytes], processes: Path, seconds: float | None) -> None:
        self._child, self._processes = child, processes
        self._since = _started(child.pid) or 1
        self._end = time.monotonic() + seconds if seconds is not None else math.inf
        self.over = False
        """The time was over before the job had ended."""

    def end_now(self) -> None:
        """Let the time be over."""
        self._end = min(self._end, time.monotonic())

    def enforce(self) -> None:
        """Tell the job to end when its time is over, and kill it when it does not."""
        if time.monotonic() < self._end:
            return
        if not self.over:
            self.over = True
            self._end = time.monotonic() + GRACE_S
            self._send(signal.SIGTERM)
            self._signal_all(signal.SIGCONT)  # a rank that was stopped by a signal hears no other one
        else:
            self._send(signal.SIGKILL)
            self.clear()

    def clear(self) -> None:
        """Kill what is left of a job whose time was over; one that ended by itself is left as it is."""
        if self.over:
            self._signal_all(signal.SIGKILL)

    def _signal_all(self, signum: signal.Signals) -> None:
        for file in self._processes.glob("*-*.jsonl"):
            named = _NAME.fullmatch(file.stem)
            if named is None:
                continue
            pid, ticks = int(named[1]), int(named[2])
            # Whatever a file is called: who began before the job, as we did, is none of it.
            if ticks >= self._since and _started(pid) == ticks:
                with contextlib.suppress(OSError):
                    os.kill(pid, signum)

    def _send(self, signum: signal.Signals) -> None:
        with contextlib.suppress(OSError):
            self._child.send_signal(signum)


def _started(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot: a number that was given anew has another."""
    fields = read_stat(pid)
    return int(fields[STARTED]) if fields else None
