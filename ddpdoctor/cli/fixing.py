"""``lint --fix`` and ``--diff``: the few corrections that are safe, written into the files or shown."""

from __future__ import annotations

import argparse
import difflib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.errors import UsageError

if TYPE_CHECKING:
    from ddpdoctor.api.linting import Correction
    from ddpdoctor.report.model import Report


def add_fixing_options(parser: argparse.ArgumentParser) -> None:
    """Add --fix and --diff."""
    group = parser.add_argument_group("corrections")
    group.add_argument(
        "--fix",
        action="store_true",
        help="apply the safe corrections to the files, then show what remains",
    )
    group.add_argument(
        "--diff", action="store_true", help="show what --fix would write as a patch, instead of the findings"
    )


def check_fixing(options: argparse.Namespace) -> None:
    """Refuse combinations that have no meaning.

    Raises:
        UsageError: --fix with --diff, with a baseline to write, or for a script on stdin.
    """
    if not getattr(options, "fix", False):
        return
    if getattr(options, "diff", False):
        raise UsageError("--fix and --diff cannot be combined", hint="--diff first, then --fix")
    if "-" in options.paths:
        raise UsageError(
            ("--fix needs a file; a script on stdin cannot be written back"),
            hint="ddpdoctor lint train.py --fix",
        )
    if getattr(options, "write_baseline", None) is not None:
        raise UsageError("--fix and --write-baseline cannot be combined", hint="run --fix first")


def make_corrections(report: Report) -> Iterator[Correction]:
    """Yield what the corrections make of each file; print which cannot be corrected."""
    from ddpdoctor.api import linting
    from ddpdoctor.cli.output.display import complain

    return linting.make_corrections(report, lambda words: complain(f"ddpdoctor: {words}"))


def write_corrections(report: Report) -> int:
    """Write all corrections; return how many files were written.

    Raises:
        OutputError: a file cannot be written.
    """
    from ddpdoctor.cli.outputs import write_bytes

    written = 0
    for each in make_corrections(report):
        write_bytes(Path(each.file), each.after)
        written += 1
    return written


def format_diff(report: Report) -> str:
    """Return all corrections as a patch for ``patch -p1`` or ``git apply``; empty where there is none."""
    parts = []
    for each in make_corrections(report):
        old, new = (
            io.StringIO(data.decode("utf-8"), newline="\n").readlines() for data in (each.before, each.after)
        )
        for line in difflib.unified_diff(old, new, f"a/{each.file}", f"b/{each.file}"):
            parts.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(parts)
