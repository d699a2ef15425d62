"""Running commands in turn and timing them, so that a machine that slows down slows all of them."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.figures import BenchmarkError

LIMIT_S = 900.0
"""A command that takes longer hangs: the slowest, `lint` of all installed packages, takes a third of it."""
SHOWN_LINES = 15
"""How much of a failed command's output is shown."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command that ends with 0 where all is well."""

    name: str
    argv: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables on top of this process's own."""

    def start(self, folder: Path, output: int) -> subprocess.Popen[bytes]:
        """Start it in ``folder`` with stdout and stderr going to the descriptor ``output``."""
        # An installation has bytecode; a checkout gets it in the untimed round, unless it may not be kept.
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return subprocess.Popen(
            self.argv,
            cwd=folder,
            env={**kept, **self.environ},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one command."""

    seconds: float
    """Wall time."""
    cpu_seconds: float
    """User and system time of the process and of the descendants that it waited for."""
    output: str
    """stdout and stderr."""


def run_once(command: Command, folder: Path, codes: tuple[int, ...] = (0,)) -> Run:
    """Run a command in ``folder`` and time it.

    Args:
        command: the command.
        folder: its working directory.
        codes: exit codes with which it has done what is timed.

    Raises:
        BenchmarkError: it failed or did not end.
    """
    log = folder / "output.log"
    with log.open("wb") as sink:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        process = command.start(folder, sink.fileno())
        code = wait_for(process, command.name)
        seconds = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    output = log.read_text(errors="replace")
    require_success(command.name, 0 if code in codes else code, output)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(seconds, cpu, output)


def wait_for(
    process: subprocess.Popen[bytes] | subprocess.Popen[str], name: str, limit_s: float | None = None
) -> int:
    """Return the exit code of a process.

    Raises:
        BenchmarkError: it did not end within so many seconds, `LIMIT_S` unless others are given; it is terminated.
    """
    limit_s = LIMIT_S if limit_s is None else limit_s
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise BenchmarkError(f"{name} did not end within {limit_s:g} s") from None


def require_success(name: str, code: int, output: str) -> None:
    """Raise where a command failed.

    Raises:
        BenchmarkError: with the last lines of its output.
    """
    if code != 0:
        last = "\n".join(output.splitlines()[-SHOWN_LINES:])
        raise BenchmarkError(f"{name} ended with {code}:\n{last}")


def run_in_turn(
    commands: Sequence[Command], rounds: int, folder: Path, *, warm_up: bool = True
) -> dict[str, list[Run]]:
    """Run every command once in each round; the order rotates, so that none always comes after the same one.

    Args:
        commands: with names of their own.
        rounds: how often each is timed.
        folder: where they run and may write.
        warm_up: run each once before, untimed, so that files are cached and byte code is compiled.

    Raises:
        BenchmarkError: a command failed or did not end.
    """
    if warm_up:
        for command in commands:
            run_once(command, folder)
    runs: dict[str, list[Run]] = {command.name: [] for command in commands}
    for number in range(rounds):
        for command in _rotate(commands, number):
            runs[command.name].append(run_once(command, folder))
    return runs


def _rotate(commands: Sequence[Command], number: int) -> Iterator[Command]:
    for index in range(len(commands)):
        yield commands[(index + number) % len(commands)]


def median_seconds(runs: Sequence[Run]) -> float:
    """Return the median wall time."""
    return statistics.median(run.seconds for run in runs)


def median_cpu(runs: Sequence[Run]) -> float:
    """Return the median processor time."""
    return statistics.median(run.cpu_seconds for run in runs)


def describe_spread(runs: Sequence[Run]) -> str:
    """Return words on how far the runs lie apart, e.g. ``median of 5, 1.9-2.3 s``."""
    times = [run.seconds for run in runs]
    return f"median of {len(times)}, {min(times):.3g}-{max(times):.3g} s"


def compare(first: Sequence[Run], second: Sequence[Run]) -> tuple[float, str]:
    """Return the ratio of the medians of two commands that ran in turn, and words on its spread."""
    rounds = [a.seconds / b.seconds for a, b in zip(first, second, strict=True)]
    ratio = median_seconds(first) / median_seconds(second)
    return ratio, f"by round {min(rounds):.3g}-{max(rounds):.3g}"


def find_script(name: str) -> tuple[str, ...]:
    """Return how to call a console script that is installed beside this Python.

    Raises:
        BenchmarkError: it is not there.
    """
    script = Path(sys.executable).with_name(name)
    if not script.exists():
        raise BenchmarkError(f"{script} is missing: install the project with `sh scripts/dev.sh setup`")
    return (str(script),)
