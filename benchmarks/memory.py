"""Peak memory of a command and all its descendants, sampled from beside it."""

from __future__ import annotations

import subprocess
import threading

import psutil

PERIOD_S = 0.1
"""Between two looks. Reading one process takes 1-3 ms of kernel time, so a look at 64 ranks takes 0.1-0.2 s:
the runs that are timed go without."""


class PeakMemory:
    """Samples the proportional set size (PSS) of a process tree until it ends.

    A page that n processes share counts 1/n in each, so the sum over the tree counts it once (smaps_rollup
    in proc(5)). The processes are read one after the other; a short peak between two looks is not seen.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._pid = process.pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak = 0
        """Bytes."""
        self.processes = 0
        """How many there were at the peak."""
        self.looks = 0
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.is_set():
            sizes = read_sizes(self._pid).values()
            self.looks += 1
            if sum(sizes) > self.peak:
                self.peak, self.processes = sum(sizes), len(sizes)
            self._over.wait(PERIOD_S)

    def close(self) -> None:
        """Stop looking."""
        self._over.set()
        self._thread.join(timeout=30)


def read_sizes(pid: int) -> dict[int, int]:
    """Return the proportional set size in bytes of a process and of each of its descendants that have memory."""
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return {}
    sizes = {process.pid: _read_pss(process) for process in tree}
    return {each: size for each, size in sizes.items() if size}


def _read_pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:  # it has ended, or is a zombie, which has no memory
        return 0
