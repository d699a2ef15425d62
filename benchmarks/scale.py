"""`ddpdoctor check` with many ranks on one machine: time, memory, and whether all passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.figures import BenchmarkError, Figure
from benchmarks.hello import check_command
from benchmarks.machine import GIB
from benchmarks.memory import PeakMemory
from benchmarks.timing import (
    Command,
    describe_spread,
    median_cpu,
    median_seconds,
    require_success,
    run_in_turn,
    wait_for,
)

NAME = "scale"
SIZES = (8, 16, 64)
BARS_GIB = {64: 8.0}
"""Ranks -> bar of the proportional set size (table "Speed and scale" of the design)."""


def measure(folder: Path, rounds: int = 3, sizes: tuple[int, ...] = SIZES) -> list[Figure]:
    """Time every size in turn, and then run each once more while its memory is sampled.

    Raises:
        BenchmarkError: a run found something or did not look at everything.
    """
    commands = {size: check_command(size, folder) for size in sizes}
    runs = run_in_turn(list(commands.values()), rounds, folder)
    figures = []
    for size, command in commands.items():
        taken = runs[command.name]
        detail = f"{describe_spread(taken)}; {median_cpu(taken):.3g} s of processor"
        figures.append(Figure(NAME, command.name, median_seconds(taken), "s", None, detail))
        figures += _measure_memory(size, command, folder)
    return figures


def _measure_memory(size: int, command: Command, folder: Path) -> list[Figure]:
    log = folder / "output.log"
    with log.open("wb") as sink:
        process = command.start(folder, sink.fileno())
        memory = PeakMemory(process)
        try:
            code = wait_for(process, command.name)
        finally:
            memory.close()
    require_success(command.name, code, log.read_text(errors="replace"))
    bad, passed, untold = count_checks(json.loads((folder / "report.json").read_text()))
    detail = f"proportional set size of {memory.processes} processes, {memory.looks} looks"
    label = f"{command.name}: "
    return [
        Figure(NAME, label + "peak memory", memory.peak / GIB, "GiB", BARS_GIB.get(size), detail),
        Figure(NAME, label + "checks not passed", bad, "", 1, f"{passed} passed, {untold} could not tell"),
    ]


def count_checks(report: dict[str, Any]) -> tuple[int, int, int]:
    """Return how many checks did not pass, how many did, and how many others could not tell.

    A check that could not look counts as not passed where the verdict requires it. Some cannot tell anything
    on a crowded machine and say so, such as the expected bandwidth of ranks that wait for a core.

    Raises:
        BenchmarkError: the report holds no check.
    """
    rows = report["checks"]
    if not rows:
        raise BenchmarkError("the report holds no check")
    states = [row["status"] for row in rows]
    missing = [row["required"] for row in rows if row["status"] == "unknown"]
    bad = states.count("fail") + states.count("error") + sum(missing)
    return bad, states.count("pass"), len(missing) - sum(missing)
