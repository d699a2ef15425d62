"""How fast `ddpdoctor run` carries what ranks print, against torchrun, which lets them print themselves."""

from __future__ import annotations

import os
import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.figures import BenchmarkError, Figure
from benchmarks.machine import ROOT
from benchmarks.running import make_command
from benchmarks.timing import Command, require_success, wait_for

NAME = "output"
SCRIPT = ROOT / "benchmarks" / "writing.py"
MEGABYTES = 1000
BAR_MB = 100
"""Largest resident size of the supervisor: what it carries and reads again must not pile up in it."""
READ = 1 << 20
SHOWN = 4000
"""Bytes of the end of the output that are kept, to say why a job failed."""


@dataclass(frozen=True, slots=True)
class Written:
    """One job that has written its output."""

    writing_s: float
    """What the writing took in the rank."""
    whole_s: float
    peak: int
    """Largest resident size of the command's own process that was seen, in bytes."""


def measure(folder: Path, rounds: int = 3, megabytes: float = MEGABYTES) -> list[Figure]:
    """Run both in turn, torchrun twice in each round for the gap of A against A.

    Raises:
        BenchmarkError: one of them failed.
    """
    names = plain, ours, again = "torchrun", "ddpdoctor run", "torchrun again"
    runs: dict[str, list[Written]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names[number % 3 :] + names[: number % 3]:
            runs[name].append(write_once(name, name == ours, folder, megabytes))
    speeds = {name: [megabytes / each.writing_s for each in taken] for name, taken in runs.items()}
    medians = {name: statistics.median(taken) for name, taken in speeds.items()}
    whole = {name: statistics.median(each.whole_s for each in taken) for name, taken in runs.items()}
    peak = max(each.peak for each in runs[ours]) / 1e6
    more = whole[ours] - whole[plain]
    how = f"{whole[ours]:.3g} against {whole[plain]:.3g} s; A/A gap {whole[again] - whole[plain]:.3g} s"
    return [
        *(
            Figure(NAME, f"{megabytes:g} MB of one rank, {name}", medians[name], "MB/s", None, _describe(speeds[name]))
            for name in names
        ),
        Figure(NAME, "more from start to end, verdict and reports included", more, "s", None, how),
        Figure(NAME, "largest supervisor", peak, "MB", BAR_MB, "resident size, carrying and judging"),
    ]  # fmt: skip


def _describe(speeds: list[float]) -> str:
    return f"median of {len(speeds)}, {min(speeds):.3g}-{max(speeds):.3g} MB/s"


def write_once(name: str, watched: bool, folder: Path, megabytes: float) -> Written:
    """Run one job whose output is read from a pipe and thrown away.

    Raises:
        BenchmarkError: it failed, or not all of its output came.
    """
    told = folder / "seconds"
    command = Command(name, make_command(watched, str(SCRIPT), folder, 1, str(told), str(megabytes)))
    source, sink = os.pipe()
    began = time.perf_counter()
    process = command.start(folder, sink)
    os.close(sink)
    over, sizes = threading.Event(), [0]
    watching = threading.Thread(target=_watch, args=(process.pid, over, sizes), daemon=True)
    watching.start()
    carried, tail = 0, b""
    with open(source, "rb", buffering=0) as pipe:
        while chunk := pipe.read(READ):
            carried, tail = carried + len(chunk), (tail + chunk)[-SHOWN:]
    code = wait_for(process, name)
    seconds = time.perf_counter() - began
    over.set()
    watching.join()
    require_success(name, code, tail.decode(errors="replace"))
    if carried < megabytes * 1e6:
        raise BenchmarkError(f"{name} let {carried / 1e6:g} of {megabytes:g} MB through")
    return Written(float(told.read_text()), seconds, max(sizes))


def _watch(pid: int, over: threading.Event, sizes: list[int]) -> None:
    while not over.wait(0.05):
        try:
            sizes[0] = max(sizes[0], psutil.Process(pid).memory_info().rss)
        except psutil.Error:
            return
