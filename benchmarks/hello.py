"""The whole of `ddpdoctor check` against torchrun's hello-world."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.machine import ROOT
from benchmarks.timing import (
    Command,
    Run,
    compare,
    describe_spread,
    find_script,
    median_cpu,
    median_seconds,
    run_in_turn,
)

NAME = "hello"
SCRIPT = ROOT / "benchmarks" / "hello_world_all_reduce.py"


def measure(folder: Path, rounds: int = 5, nproc: int = 4) -> list[Figure]:
    """Run both in turn, torchrun twice in each round for the gap of A against A.

    Raises:
        BenchmarkError: one of them failed.
    """
    check, hello = check_command(nproc, folder), f"torchrun --nproc-per-node {nproc} hello-world"
    commands = [check, torchrun_command(hello, nproc), torchrun_command(hello + " again", nproc)]
    runs = run_in_turn(commands, rounds, folder)
    bar = median_seconds(runs[hello])
    gap, gap_spread = compare(runs[hello + " again"], runs[hello])
    ratio, spread = compare(runs[check.name], runs[hello])
    return [
        Figure(NAME, check.name, median_seconds(runs[check.name]), "s", bar, _describe(runs[check.name])),
        Figure(NAME, hello, bar, "s", None, _describe(runs[hello])),
        Figure(NAME, "ratio of the two", ratio, "", 0.6, spread),
        Figure(NAME, "torchrun against itself", gap, "", None, f"A/A gap, {gap_spread}"),
    ]


def _describe(runs: list[Run]) -> str:
    return f"{describe_spread(runs)}; {median_cpu(runs):.3g} s of processor"


def check_command(nproc: int, folder: Path) -> Command:
    """Return a whole `check`, all stages included, with its report in ``folder``."""
    argv = (*find_script("ddpdoctor"), "check", "--nproc", str(nproc), "--json", str(folder / "report.json"))
    return Command(f"ddpdoctor check --nproc {nproc}", argv)


def torchrun_command(name: str, nproc: int) -> Command:
    """Return torchrun's hello-world, on a port that is free now so that two runs do not meet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launcher = (sys.executable, "-m", "torch.distributed.run")
    return Command(name, (*launcher, "--nproc-per-node", str(nproc), "--master-port", str(port), str(SCRIPT)))
