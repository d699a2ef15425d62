"""Runs the benchmarks and prints one table: ``python -m benchmarks [--only NAME] [--markdown FILE]``."""

from __future__ import annotations

import argparse
import inspect
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import (
    attaching,
    commands,
    hanging,
    hello,
    judging,
    output,
    reading,
    recorder,
    running,
    scale,
    steps,
    whole,
)
from benchmarks.figures import BenchmarkError, Figure, format_markdown, format_table
from benchmarks.machine import describe_machine

BENCHMARKS: dict[str, Callable[..., list[Figure]]] = {
    module.NAME: module.measure
    for module in (
        hello,
        scale,
        commands,
        judging,
        reading,
        running,
        steps,
        output,
        hanging,
        attaching,
        recorder,
        whole,
    )
}
"""Each writes only below the folder that it gets."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was chosen; return 0 where all bars are met, 1 where one is missed, 3 where one could not run."""
    options = _make_parser().parse_args(arguments)
    facts = describe_machine()
    print("\n".join(facts), end="\n\n", flush=True)
    figures, broken = run_benchmarks(options.only or list(BENCHMARKS), options.rounds)
    if options.markdown is not None and figures:
        options.markdown.write_text(format_markdown(figures, facts))
    missed = [figure.what for figure in figures if figure.met is False]
    bars = sum(figure.met is not None for figure in figures)
    print(f"{bars - len(missed)} of {bars} bars met" + (f"; missed: {', '.join(missed)}" if missed else ""))
    return 3 if broken else 1 if missed else 0


def run_benchmarks(names: Sequence[str], rounds: int | None) -> tuple[list[Figure], bool]:
    """Run benchmarks by name, print each one's table as soon as it is there.

    Args:
        names: keys of `BENCHMARKS`.
        rounds: how often each command is timed; None leaves it to the benchmark.

    Returns:
        All figures, and whether a benchmark could not be run.
    """
    figures: list[Figure] = []
    broken = False
    for name in names:
        measure = BENCHMARKS[name]
        repeats = rounds is not None and "rounds" in inspect.signature(measure).parameters
        with tempfile.TemporaryDirectory(prefix="ddpdoctor-bench-") as folder:
            try:
                found = measure(Path(folder), rounds) if repeats else measure(Path(folder))
            except BenchmarkError as problem:
                print(f"{name} could not be measured: {problem}", file=sys.stderr)
                broken = True
                continue
        figures += found
        print(format_table(found), end="\n\n", flush=True)
    return figures, broken


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    parser.add_argument("--only", action="append", choices=list(BENCHMARKS), help="repeatable")
    parser.add_argument("--rounds", type=int, metavar="N", help="how often each command is timed")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there as well")
    return parser


if __name__ == "__main__":
    sys.exit(main())
