"""What `ddpdoctor run` adds to torchrun around a job: time and memory."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import BenchmarkError, Figure
from benchmarks.machine import ROOT
from benchmarks.memory import read_sizes
from benchmarks.timing import (
    LIMIT_S,
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
BAR_RANK_MB, BAR_AGENT_MB = 30, 50
"""Memory of a rank more than under torchrun, and of the agent with the supervisor more than torchrun's own agent (the
same table)."""
SCRIPT = ROOT / "benchmarks" / "starting.py"
STAYING = ROOT / "benchmarks" / "staying.py"
STAYING_RANKS = 2
SETTLING_S = 2.0
"""What `run` loads beside the starting job is there by then, and it has taken samples."""


def measure(folder: Path, rounds: int = 8) -> list[Figure]:
    """Run a script that does nothing under both in turn, torchrun twice for the gap of A against A.

    Raises:
        BenchmarkError: one of them failed.
    """
    names = plain, ours, again = "torchrun", "ddpdoctor run", "torchrun again"
    environ = {"BENCHMARK_PID": str(os.getpid())}
    commands = [Command(name, make_command(name == ours, str(SCRIPT), folder), environ) for name in names]
    runs = run_in_turn(commands, rounds, folder)
    starts = {name: [_read_start(run) for run in taken] for name, taken in runs.items()}
    whole = {name: [run.seconds for run in taken] for name, taken in runs.items()}
    used = {name: [run.cpu_seconds for run in taken] for name, taken in runs.items()}
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
        _compare("more processor time from start to end", used[ours], used[plain], None),
        _compare("torchrun against itself", used[again], used[plain], None),
        *_compare_memory(folder),
    ]


def _read_start(run: Run) -> float:
    found = re.search(r"started after ([\d.]+) s", run.output)
    if found is None:
        raise BenchmarkError(f"the script said nothing:\n{run.output}")
    return float(found[1])


def make_command(
    watched: bool, script: str, folder: Path, nproc: int = 1, *arguments: str
) -> tuple[str, ...]:
    """Return the command line of a job, under `run` or plain torchrun."""
    if watched:
        launcher: tuple[str, ...] = (*find_script("ddpdoctor"), "run", "--run-dir", str(folder / "runs"))
    else:
        launcher = (sys.executable, "-m", "torch.distributed.run")
    return (*launcher, "--standalone", "--nproc-per-node", str(nproc), script, *arguments)


def _compare(what: str, ours: list[float], plain: list[float], bar: float | None) -> Figure:
    differences = [one - other for one, other in zip(ours, plain, strict=True)]
    least = f"the least {min(ours):.3g} against {min(plain):.3g} s"
    detail = f"median of the rounds' differences, {min(differences):.3g} to {max(differences):.3g} s; {least}"
    return Figure(NAME, what, statistics.median(differences), "s", bar, detail)


def _compare_memory(folder: Path) -> list[Figure]:
    plain, ours = (_measure_memory(watched, folder) for watched in (False, True))
    rank_detail = (
        f"{ours.rank:.0f} against {plain.rank:.0f} MB, {STAYING_RANKS} ranks after DDP steps on gloo"
    )
    beside_detail = f"{ours.beside:.0f} against {plain.beside:.0f} MB, the supervisor {ours.root:.0f} MB"
    more, beside = ours.rank - plain.rank, ours.beside - plain.beside
    return [
        Figure(NAME, "memory of a rank, more", more, "MB", BAR_RANK_MB, rank_detail),
        Figure(NAME, "memory of agent and supervisor, more", beside, "MB", BAR_AGENT_MB, beside_detail),
    ]


@dataclass(frozen=True, slots=True)
class Memory:
    """Proportional set sizes of a job that waits, in MB."""

    rank: float
    """Mean of the ranks."""
    beside: float
    """All other processes."""
    root: float
    """The command itself."""


def _measure_memory(watched: bool, folder: Path) -> Memory:
    name = "ddpdoctor run" if watched else "torchrun"
    here = folder / name.replace(" ", "-")
    here.mkdir()
    command = Command(name, make_command(watched, str(STAYING), folder, STAYING_RANKS, str(here)))
    with (folder / "output.log").open("wb") as sink:
        process = command.start(folder, sink.fileno())
        try:
            _wait_for_ranks(process, here)
            ranks = {int(path.stem) for path in here.glob("*.rank")}
            sizes = {pid: size / 1e6 for pid, size in read_sizes(process.pid).items()}
        finally:
            (here / "go").touch()
            code = wait_for(process, name)
    require_success(name, code, (folder / "output.log").read_text(errors="replace"))
    of_ranks = [size for pid, size in sizes.items() if pid in ranks]
    return Memory(statistics.mean(of_ranks), sum(sizes.values()) - sum(of_ranks), sizes[process.pid])


def _wait_for_ranks(process: subprocess.Popen[bytes], folder: Path) -> None:
    end = time.monotonic() + LIMIT_S
    while len(list(folder.glob("*.rank"))) < STAYING_RANKS:
        if process.poll() is not None or time.monotonic() > end:
            raise BenchmarkError("the ranks that were to be looked at did not come up")
        time.sleep(0.1)
    time.sleep(SETTLING_S)


def _describe(runs: list[Run]) -> str:
    return f"median of {len(runs)}; the whole {median_seconds(runs):.3g} s, {median_cpu(runs):.3g} s of processor"
