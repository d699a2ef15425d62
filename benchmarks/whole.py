"""What `ddpdoctor run` costs each step, measured between whole jobs that know nothing of it and take turns.

`steps` switches hooks inside one process, which shows small differences, and misses what only a process that was
watched from its start pays. Both of its states share one set of caches, so what ours push out of them is paid for in
the steps without hooks as well; and the audit hook (`files`) cannot be taken out: it calls Python for each ``id()``,
``sys._getframe()`` and look at ``f_code``, whoever does that.

Here the jobs run at the same time, under torchrun and under `run`, and one after the other takes a slice of steps while
the others sleep. A machine whose speed changes by the minute changes for all of them: whole runs one after the other
differ by a fifth here, slices by a fiftieth. What supervisors and agents use beside the ranks all jobs pay for alike,
so it is not seen; on a machine with a free core it costs no step anything (`run` and `steps` measure it).
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import BenchmarkError, Figure, format_table
from benchmarks.machine import ROOT
from benchmarks.running import make_command
from benchmarks.stepping import WARM_UP
from benchmarks.timing import LIMIT_S, Command, require_success, wait_for
from benchmarks.training import MEASURED_ALL, TURNS, UNTIMED

NAME = "whole"
SCRIPT = ROOT / "benchmarks" / "training.py"
WAYS = ("torchrun", "torchrun again", "--watch-level off", "default")
SETTINGS = (
    (1, 2, 4, "ddp", 0.1),
    (10, 2, 4, "ddp", 0.1),
    (10, 2, 1000, "ddp", None),
    (10, 2, 4, "fsdp", 0.1),
    (10, 16, 4, "ddp", None),
)
"""Length of a step in ms, ranks, parameters of the model, what wraps it, bar in ms (table "Speed and scale")."""
STEPS = {1: 100, 10: 40}
"""Steps of a slice, by the length of a step in ms."""
JOBS_LIMIT_S = 1800.0
"""All jobs of a setting end within; 64 processes on two cores take a third of it."""
STEADY = 5
"""Slices after the first steps, by round: six rounds make thirty."""
PHASES = {"first": "of the first steps", "steady": f"from step {MEASURED_ALL:,} on"}
"""Which steps: bars hold for a job that goes on, not for the steps that are all measured."""


@dataclass(frozen=True, slots=True)
class Slice:
    """What a job took for a step in one of its turns, in ms."""

    first: int
    """Number of its first step."""
    wall: float
    """Lower quartile of its steps, mean of the ranks."""
    processor: float
    """Lower quartile of that of the main thread, without the loop that makes a step as long as asked for; mean of the
    ranks."""


def measure(folder: Path, rounds: int = 6) -> list[Figure]:
    """Run every setting in all ways, in turn.

    Raises:
        BenchmarkError: a job failed or did not end.
    """
    figures: list[Figure] = []
    for length, ranks, parameters, kind, bar in SETTINGS:
        here = folder / f"{length}-{ranks}-{parameters}-{kind}"
        here.mkdir()
        steps = STEPS[length]
        slices = -(-(MEASURED_ALL - 2 * WARM_UP) // (steps + UNTIMED)) + STEADY * rounds
        arguments = (str(here), *map(str, (length, slices, steps, parameters)), kind)
        named = f"{length} ms step, {ranks} ranks, {parameters} parameters, {kind}: "
        judged = judge(named, run_jobs(here, ranks, slices, arguments), bar)
        # All take a quarter of an hour: one that is cut has said what it had.
        print(format_table(judged), file=sys.stderr, flush=True)
        figures += judged
    return figures


def run_jobs(folder: Path, ranks: int, slices: int, arguments: tuple[str, ...]) -> dict[str, list[Slice]]:
    """Run a job in each way, one slice of each in turn; return what they took.

    Raises:
        BenchmarkError: one failed or did not end.
    """
    turns = folder / TURNS
    turns.write_bytes(bytes(len(WAYS) * slices + 1))
    started: list[tuple[str, subprocess.Popen[bytes], Path]] = []
    with ExitStack() as stack:
        for index, way in enumerate(WAYS):
            here = folder / str(index)
            here.mkdir()
            process = _start(way, index, ranks, here, arguments)
            stack.callback(_end, process)
            started.append((way, process, here / "output.log"))
            _wait_until_ready(folder / f"{index}.ready", *started[-1])  # alone: the first one calibrates
        with turns.open("r+b") as file:
            file.write(b"\x01")
        for way, process, log in started:
            require_success(way, wait_for(process, way, JOBS_LIMIT_S), log.read_text(errors="replace"))
    return {way: _read(folder, index, ranks) for index, way in enumerate(WAYS)}


def _start(
    way: str, index: int, ranks: int, folder: Path, arguments: tuple[str, ...]
) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environ = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "INDEX": str(index), "JOBS": str(len(WAYS))}
    if way.startswith("--watch-level"):
        environ["DDPDOCTOR_WATCH_LEVEL"] = way.split()[1]
    command = make_command(not way.startswith("torchrun"), str(SCRIPT), folder, ranks, *arguments)
    with (folder / "output.log").open("wb") as sink:
        return Command(way, command, environ).start(folder, sink.fileno())


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a job that waits for a turn that does not come."""
    if process.poll() is None:
        process.terminate()
        process.wait(LIMIT_S)


def _wait_until_ready(ready: Path, way: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + LIMIT_S
    while not ready.exists():
        code = process.poll()
        if code is not None:
            require_success(way, code or 1, log.read_text(errors="replace"))
        if time.monotonic() > end:
            raise BenchmarkError(f"{way} did not begin to train within {LIMIT_S:g} s")
        time.sleep(0.1)


def _read(folder: Path, index: int, ranks: int) -> list[Slice]:
    """Return what the ranks of a job wrote, slice by slice."""
    written = [json.loads((folder / f"{index}-rank-{rank}.json").read_text()) for rank in range(ranks)]
    return [
        Slice(rows[0][0], *(statistics.mean(row[column] for row in rows) * 1e3 for column in (1, 2)))
        for rows in zip(*written, strict=True)
    ]


def judge(named: str, taken: dict[str, list[Slice]], bar: float | None) -> list[Figure]:
    """Make figures of what each way took more than torchrun, by the median of the differences of slices in turn.

    The bar is one of wall time; where torchrun differs from itself by more than the bar, it is one of processor time.
    """
    low, _, high = statistics.quantiles(_compare(taken, "torchrun again", "steady", "wall"), n=4)
    judged = "default", "steady", "wall" if high - low < 2 * (bar or 0) else "processor"
    figures = []
    for way, phase, kind in itertools.product(WAYS[1:], PHASES, ("wall", "processor")):
        differences = _compare(taken, way, phase, kind)
        low, median, high = statistics.quantiles(differences, n=4)
        plain = statistics.median(getattr(each, kind) for each in _select(taken["torchrun"], phase))
        figures.append(
            Figure(
                NAME,
                f"{named}{way}, more {kind} time {PHASES[phase]}",
                median,
                "ms",
                bar if (way, phase, kind) == judged else None,
                f"half of {len(differences)} slices {low:.3g} to {high:.3g}; torchrun {plain:.4g} ms",
            )
        )
    return figures


def _compare(taken: dict[str, list[Slice]], way: str, phase: str, kind: str) -> list[float]:
    """Return how much more each slice of one way took than the one of torchrun in the same round, in ms."""
    pairs = zip(_select(taken[way], phase), _select(taken["torchrun"], phase), strict=True)
    return [getattr(one, kind) - getattr(other, kind) for one, other in pairs]


def _select(slices: list[Slice], phase: str) -> list[Slice]:
    return [each for each in slices if (each.first >= MEASURED_ALL) == (phase == "steady")]
