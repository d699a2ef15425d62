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
    from ddpdoctor.report.model import Report
    from ddpdoctor.source.fixes import Wanted


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


def count_correctable(report: Report) -> int:
    """Return how many of the findings that count --fix may correct."""
    return sum(len(wanted) for wanted in find_wanted(report).values())


def find_wanted(report: Report) -> dict[str, list[Wanted]]:
    """Return what can be corrected, by file."""
    from ddpdoctor.source.fixes import Wanted, is_correctable

    found: dict[str, list[Wanted]] = {}
    for each in report.findings:
        rule = each.details.get("rule")
        if (
            each.state != "active"
            or not isinstance(rule, str)
            or not is_correctable(rule, each.details)
            or not each.where
        ):
            continue
        place = each.where[0]
        if place.cell is None and place.column is not None and not place.file.startswith("<"):
            wanted = Wanted(rule, place.line, place.column, place.source or "", each.details)
            found.setdefault(place.file, []).append(wanted)
    return found


def make_corrections(report: Report) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield each file that can be corrected, what it holds and what it would hold; say which cannot be."""
    from ddpdoctor.cli.output.display import complain
    from ddpdoctor.source.fixes import Refused, correct

    for name, wanted in sorted(find_wanted(report).items()):
        try:
            data = Path(name).read_bytes()
            corrected, reasons = correct(data, name, wanted)
        except (Refused, OSError) as why:
            complain(f"ddpdoctor: {name} was not corrected: {getattr(why, 'strerror', None) or why}")
            continue
        for reason in reasons:
            complain(f"ddpdoctor: {name} was not corrected in {reason}")
        if corrected != data:
            yield name, data, corrected


def write_corrections(report: Report) -> int:
    """Write all corrections; return how many files were written.

    Raises:
        OutputError: a file cannot be written.
    """
    from ddpdoctor.cli.outputs import write_bytes

    written = 0
    for name, _, corrected in make_corrections(report):
        write_bytes(Path(name), corrected)
        written += 1
    return written


def format_diff(report: Report) -> str:
    """Return all corrections as a patch for ``patch -p1`` or ``git apply``; empty where there is none."""
    parts = []
    for name, before, after in make_corrections(report):
        old, new = (io.StringIO(data.decode("utf-8"), newline="\n").readlines() for data in (before, after))
        for line in difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"):
            parts.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(parts)
