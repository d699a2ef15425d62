"""How long `attach` takes with a job that hangs, of 4 and of 64 ranks."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.figures import BenchmarkError, Figure
from benchmarks.lookalikes import start_job, write_program
from benchmarks.timing import Command, describe_spread, median_cpu, median_seconds, run_in_turn
from ddpdoctor.watch.live.stacks import find_py_spy

NAME = "attach"
SIZES = (4, 64)
BAR_S = 10.0
"""A few seconds, of which one lies between the two samples."""
STUCK = 1
"""The rank that stands outside of every call."""


def measure(folder: Path, rounds: int = 3) -> list[Figure]:
    """Attach to ranks that wait for one of them, and check that it is named.

    Raises:
        BenchmarkError: it was not, or there is no py-spy.
    """
    if find_py_spy() is None:
        raise BenchmarkError("py-spy is not installed")
    figures = []
    for size in SIZES:
        place = folder / str(size)
        place.mkdir()
        write_program(place)
        with start_job(place, size, {STUCK: "read"}) as ranks:
            argv = (sys.executable, "-m", "ddpdoctor", "attach", str(ranks[0].pid), "--fail-on", "never")
            taken = run_in_turn([Command("attach", argv)], rounds, place)["attach"]
        if any(f"rank {STUCK} stands in" not in " ".join(run.output.split()) for run in taken):
            raise BenchmarkError(f"attach did not name rank {STUCK}:\n{taken[0].output}")
        detail = f"{describe_spread(taken)}; {median_cpu(taken):.3g} s of processor; the rank that holds them is named"
        figures.append(
            Figure(NAME, f"attach to {size} ranks that hang", median_seconds(taken), "s", BAR_S, detail)
        )
    return figures
