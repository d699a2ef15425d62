"""What `ddpdoctor run` adds to torchrun around a job: time and memory."""

from __future__ import annotations

import os
import re
import statistics
import sys
from pathlib import Path

from benchmarks.figures import BenchmarkError, Figure
from benchmarks.machine import ROOT
from benchmarks.memory import PeakMemory
from benchmarks.timing import (
    Command,
    Run,
    find_script,
    median_cpu,
    median_seconds,
    require_success,
    run_in_turn,
    wait_for,
)

NAME = "run"
BAR_S = 0.5
"""Start-up over torchrun's (table "Speed and scale" of the design)."""
BAR_MB = 50 + 30
"""The supervisor 50 MB above torchrun's own agent, and 30 MB for one rank (the same table)."""
SCRIPT = ROOT / "benchmarks" / "starting.py"
STAYING = "import time\ntime.sleep(3)\n"
"""Long enough for several looks at a job that runs."""


def measure(folder: Path, rounds: int = 8) -> list[Figure]:
    """Run a script that does nothing under both in turn, torchrun twice for the gap of A against A.

    Raises:
        BenchmarkError: one of them failed.
    """
    (folder / "staying.py").write_text(STAYING)
    names = plain, ours, again = "torchrun", "ddpdoctor run", "torchrun again"
    environ = {"BENCHMARK_PID": str(os.getpid())}
    commands = [Command(name, make_command(name == ours, str(SCRIPT), folder), environ) for name in names]
    runs = run_in_turn(commands, rounds, folder)
    starts = {name: [_read_start(run) for run in taken] for name, taken in runs.items()}
    whole = {name: [run.seconds for run in taken] for name, taken in runs.items()}
    figures = [
        Figure(
            NAME,
            f"{name} until the script begins",
            statistics.median(starts[name]),
            "s",
            None,
            _describe(runs[name]),
        )
        for name in (plain, ours)
    ]
    return [
        *figures,
        _compare("more until the script begins", starts[ours], starts[plain], BAR_S),
        _compare("torchrun against itself", starts[again], starts[plain], None),
        _compare("more from start to end, verdict and reports included", whole[ours], whole[plain], None),
        _compare_memory(folder),
    ]


def _read_start(run: Run) -> float:
    found = re.search(r"started after ([\d.]+) s", run.output)
    if found is None:
        raise BenchmarkError(f"the script said nothing:\n{run.output}")
    return float(found[1])


def make_command(watched: bool, script: str, folder: Path) -> tuple[str, ...]:
    """Return the command line for one rank, under `run` or plain torchrun."""
    if watched:
        launcher: tuple[str, ...] = (*find_script("ddpdoctor"), "run", "--run-dir", str(folder / "runs"))
    else:
        launcher = (sys.executable, "-m", "torch.distributed.run")
    return (*launcher, "--standalone", script)


def _compare(what: str, ours: list[float], plain: list[float], bar: float | None) -> Figure:
    differences = [one - other for one, other in zip(ours, plain, strict=True)]
    detail = f"median of the rounds' differences, {min(differences):.3g} to {max(differences):.3g} s"
    return Figure(NAME, what, statistics.median(differences), "s", bar, detail)


def _compare_memory(folder: Path) -> Figure:
    peaks = []
    for watched in (False, True):
        command = Command(
            "ddpdoctor run" if watched else "torchrun", make_command(watched, "staying.py", folder)
        )
        with open(os.devnull, "wb") as sink:
            process = command.start(folder, sink.fileno())
            memory = PeakMemory(process)
            code = wait_for(process, command.name)
            memory.close()
        require_success(command.name, code, "")
        peaks.append(memory.peak / 1e6)
    detail = f"proportional set size of the whole tree, {peaks[1]:.0f} against {peaks[0]:.0f} MB, one rank, no torch"
    return Figure(NAME, "memory more than torchrun", peaks[1] - peaks[0], "MB", BAR_MB, detail)


def _describe(runs: list[Run]) -> str:
    return f"median of {len(runs)}; the whole {median_seconds(runs):.3g} s, {median_cpu(runs):.3g} s of processor"
