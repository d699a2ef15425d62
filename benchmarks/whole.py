"""What `ddpdoctor run` costs each step, measured between whole runs of a job that knows nothing of it.

`steps` switches hooks inside one process, which shows small differences, and misses what only a process that was
watched from its start pays. Both of its states share one set of caches, so what ours push out of them is paid for in
the steps without hooks as well; and the audit hook (`files`) cannot be taken out: it calls Python for each ``id()``,
``sys._getframe()`` and look at ``f_code``, whoever does that. Here runs under torchrun and `run` take turns.

On a busy machine neither says much. Counting instructions does (valgrind's callgrind on one rank, from after the first
steps on), and so does tests/watch/test_inject_cost.py, which counts those audit events.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.figures import Figure, format_table
from benchmarks.machine import ROOT
from benchmarks.running import make_command
from benchmarks.timing import Command, run_once

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
SECONDS = 6.0
"""Of steady steps in each run."""
PHASES = {"first": "of the first steps", "steady": "from step 1,064 on"}
"""Which steps: bars hold for a job that goes on, not for the steps that are all measured."""


@dataclass
class Taken:
    """What the rounds of one way took, in ms a step; both by phase."""

    wall: dict[str, list[float]] = field(default_factory=lambda: {phase: [] for phase in PHASES})
    """Lower quartile of the steps of a run, mean of its ranks."""
    processor: dict[str, list[float]] = field(default_factory=lambda: {phase: [] for phase in PHASES})


def measure(folder: Path, rounds: int = 6) -> list[Figure]:
    """Run every setting in all ways, in turn.

    Raises:
        BenchmarkError: a job failed.
    """
    figures: list[Figure] = []
    for length, ranks, parameters, kind, bar in SETTINGS:
        here = folder / f"{length}-{ranks}-{parameters}-{kind}"
        here.mkdir()
        taken = {way: Taken() for way in WAYS}
        for number in range(rounds + 1):
            for turn in range(len(WAYS)):
                way = WAYS[(number + turn) % len(WAYS)]
                found = _run(way, length, ranks, parameters, kind, here)
                for phase in PHASES if number else ():  # the first round calibrates and fills caches
                    wall, processor = found[phase]
                    taken[way].wall[phase].append(wall)
                    taken[way].processor[phase].append(processor)
        named = f"{length} ms step, {ranks} ranks, {parameters} parameters, {kind}: "
        judged = judge(named, taken, bar)
        # All take an hour: one that is cut has said what it had.
        print(format_table(judged), file=sys.stderr, flush=True)
        figures += judged
    return figures


def _run(
    way: str, length: int, ranks: int, parameters: int, kind: str, folder: Path
) -> dict[str, tuple[float, float]]:
    out = folder / "out"
    out.mkdir(exist_ok=True)
    arguments = (str(out), str(length), str(int(SECONDS * 1e3 / length)), str(parameters), kind)
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environ = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    if way.startswith("--watch-level"):
        environ["DDPDOCTOR_WATCH_LEVEL"] = way.split()[1]
    command = make_command(not way.startswith("torchrun"), str(SCRIPT), folder, ranks, *arguments)
    run_once(Command(way, command, environ), folder)
    if not (folder / "loops").exists():
        (out / "loops").rename(folder / "loops")
    found = [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(ranks)]
    return {phase: _take_means([each[phase] for each in found]) for phase in PHASES}


def _take_means(ranks: list[tuple[list[float], float]]) -> tuple[float, float]:
    """Return lower quartile and processor time of a step in ms, from seconds of each step and of one on average."""
    quartiles = [statistics.quantiles(times, n=4)[0] * 1e3 for times, _ in ranks]
    return statistics.mean(quartiles), statistics.mean(processor * 1e3 for _, processor in ranks)


def judge(named: str, taken: dict[str, Taken], bar: float | None) -> list[Figure]:
    """Make figures of what each way took more than torchrun, by the median of the rounds' differences."""
    plain = taken["torchrun"]
    figures = []
    for way, phase, kind in itertools.product(WAYS[1:], PHASES, ("wall", "processor")):
        one, other = getattr(taken[way], kind)[phase], getattr(plain, kind)[phase]
        differences = [a - b for a, b in zip(one, other, strict=True)]
        figures.append(
            Figure(
                NAME,
                f"{named}{way}, more {kind} time {PHASES[phase]}",
                statistics.median(differences),
                "ms",
                bar if (way, phase, kind) == ("default", "steady", "wall") else None,
                f"{min(differences):.3g} to {max(differences):.3g} in {len(differences)} rounds; "
                f"{statistics.median(one):.4g} against {statistics.median(other):.4g} ms",
            )
        )
    return figures
