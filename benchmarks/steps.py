"""What `ddpdoctor run` costs each step of a job that runs."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import BenchmarkError, Figure
from benchmarks.machine import ROOT
from benchmarks.running import make_command
from benchmarks.timing import Command, run_once

NAME = "steps"
SCRIPT = ROOT / "benchmarks" / "stepping.py"
RANKS = 2
LENGTHS_MS = {10: (4, 1), 1: (10, 4)}
"""Length of a step -> steps of one turn, and how many times as many rounds. Short turns: what else a machine does lasts
longer and meets all states."""
LEVELS = ((10, 10, "light"), (10, 10, "normal"), (10, 10, "deep"), (100, 10, "normal"), (100, 1000, "normal"))
"""Length of a step, parameters of the model, and how much is looked at: what `--watch-level` costs."""
BAR_MS = 0.1
"""1 % of a step of 10 ms, and as much of one of 1 ms (table "Speed and scale" of the design)."""
BAR_MB = 50.0
"""Evidence of one hour, without logs (the same table)."""


def measure(folder: Path, rounds: int = 200) -> list[Figure]:
    """Run the job under `run` for both lengths of a step, and under torchrun for what its agent costs.

    Raises:
        BenchmarkError: a job failed, or a hook could not be switched.
    """
    figures: list[Figure] = []
    for length, (steps, times) in LENGTHS_MS.items():
        watched = _run(True, length, rounds * times, steps, folder)
        plain = _run(False, length, max(1, rounds * times // 3), steps, folder)
        figures += judge(length, steps, watched, plain)
    for length, parameters, level in LEVELS:
        watched = _run(True, length, max(6, rounds * 10 // length), 4, folder, parameters, level)
        figures += judge_level(f"{length} ms step, {parameters} parameters, {level}: ", length, watched)
    return figures


def _run(
    watched: bool, length: int, rounds: int, steps: int, folder: Path, parameters: int = 4, level: str = ""
) -> list[dict[str, Any]]:
    name = f"{'ddpdoctor run' if watched else 'torchrun'}, steps of {length} ms"
    out = folder / f"{'run' if watched else 'torchrun'}-{length}-{parameters}{level}"
    out.mkdir()
    arguments = [str(out), str(length), str(rounds), str(steps), str(parameters)]
    # The script imports its neighbours; OMP_NUM_THREADS as torchrun itself would set it, without its warning.
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environ = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    if level:
        environ["DDPDOCTOR_WATCH_LEVEL"] = level
    run_once(Command(name, make_command(watched, str(SCRIPT), folder, RANKS, *arguments), environ), folder)
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]


def judge(
    length: int, steps: int, watched: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]]
) -> list[Figure]:
    """Make figures of what the ranks measured.

    Raises:
        BenchmarkError: functions of ours were called with the hooks off, or none with the hooks on.
    """
    still = {name for rank in watched for name in rank["calls"]["off"]}
    if still:
        raise BenchmarkError(f"hooks that cannot be switched: {', '.join(sorted(still))}")
    calls = watched[0]["calls"]["on"]
    called = sum(calls.values())
    if not called:
        raise BenchmarkError("no hook was called in a step: there is nothing to be measured")
    what = f"{length} ms step: "
    wall, wall_spread, taken = _differ(watched, "on", "wall")
    rest = _differ(watched, "off", "processor")[2] - _differ(plain, "off", "processor")[2]
    gap, gap_spread, _ = _differ(watched, "again", "wall")
    used, used_spread, _ = _differ(watched, "on", "processor")
    used_gap, used_gap_spread, _ = _differ(watched, "again", "processor")
    rounds = len(watched[0]["states"]["on"]["wall"])
    how = f"median of {rounds} rounds of {steps} steps"
    seconds = watched[0]["seconds"]
    agent = (watched[0]["beside"]["agent"] - plain[0]["beside"]["agent"]) * 100
    hourly = watched[0]["written"] / seconds * 3600 / 1e6
    return [
        Figure(
            NAME, f"{what}more with hooks", wall, "ms", BAR_MS, f"{how}, {wall_spread}; a step takes {taken:.3g} ms"
        ),
        Figure(NAME, f"{what}off against off", gap, "ms", None, f"A/A gap, {gap_spread}"),
        Figure(
            NAME, f"{what}more processor time", used, "ms", BAR_MS, f"{used_spread}; {called} calls of ours in a step"
        ),
        Figure(NAME, f"{what}the same, off against off", used_gap, "ms", None, f"A/A gap, {used_gap_spread}"),
        Figure(
            NAME, f"{what}hooks off, more processor time than under torchrun", rest, "ms", None,
            "what cannot be switched off, such as threads of ours; between whole runs, so only as good as those agree",
        ),
        Figure(
            NAME, f"{what}supervisor", watched[0]["beside"]["supervisor"] * 100, "% of a core", None,
            f"over {seconds:.3g} s, the output of {RANKS} ranks carried",
        ),
        Figure(NAME, f"{what}agent, more than torchrun's", agent, "% of a core", None, "in steps of 10 ms of time"),
        Figure(NAME, f"{what}evidence of an hour", hourly, "MB", BAR_MB, "at what was written in these steps"),
    ]  # fmt: skip


def judge_level(what: str, length: int, watched: Sequence[dict[str, Any]]) -> list[Figure]:
    """Make figures of one level: what it adds to a step, its looks apart, and the share that these took."""
    wall, spread, taken = _differ(watched, "on", "wall")
    used, used_spread, _ = _differ(watched, "on", "processor")
    gap, gap_spread, _ = _differ(watched, "again", "wall")
    steps = len(watched[0]["states"]["on"]["wall"])
    bar = None if "deep" in what else max(BAR_MS, length / 100)
    share = max(rank["looks"] / rank["seconds"] for rank in watched) * 3  # on in a third of the time
    return [
        Figure(NAME, f"{what}more with hooks", wall, "ms", bar, f"{steps} rounds, {spread}; it takes {taken:.3g} ms"),
        Figure(NAME, f"{what}off against off", gap, "ms", None, f"A/A gap, {gap_spread}"),
        Figure(NAME, f"{what}more processor time", used, "ms", bar, used_spread),
        Figure(NAME, f"{what}looks", share * 100, "%", None if "deep" in what else 1.0, "of the time, as told"),
    ]  # fmt: skip


def _differ(ranks: Sequence[dict[str, Any]], state: str, kind: str) -> tuple[float, str, float]:
    """Return how much more a state takes than ``off``, the middle half of the rounds, and what ``off`` takes, in ms."""
    rows = [[rank["states"][name][kind] for rank in ranks] for name in (state, "off")]
    first, second = ([statistics.mean(column) * 1e3 for column in zip(*each, strict=True)] for each in rows)
    differences = sorted(one - other for one, other in zip(first, second, strict=True))
    quarter = len(differences) // 4
    spread = f"half of them {differences[quarter]:.3g} to {differences[-1 - quarter]:.3g}"
    return statistics.median(differences), spread, statistics.median(second)
