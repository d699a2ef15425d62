"""What ``lint`` is told not to read or not to count: exclusions, codes for some files, and a baseline."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.cli.arguments.options import split_words
from ddpdoctor.cli.arguments.parsing import BadValue, add_option

if TYPE_CHECKING:
    from ddpdoctor.report.model import Report


def add_hiding_options(parser: argparse.ArgumentParser) -> None:
    """Add --exclude, --per-file-ignores, --baseline and --write-baseline."""
    group = parser.add_argument_group("suppression")
    group.add_argument(
        "--exclude",
        action="extend",
        type=split_words,
        metavar="GLOB,...",
        help="do not read matching files, even if named explicitly: build, *_test.py, examples/**/old",
    )
    add_option(
        group,
        "--per-file-ignores",
        action="append",
        type=parse_file_rule,
        metavar="GLOB=C,...",
        help="ignore codes in files matching GLOB; repeatable",
    )
    group.add_argument("--baseline", metavar="F", help="ignore the findings listed in this file")
    add_option(
        group, "--write-baseline", metavar="F", help="write all findings to F, for --baseline, and exit 0"
    )


def parse_file_rule(text: str) -> tuple[str, list[str]]:
    """Read ``GLOB=CODE,...``.

    Raises:
        BadValue: it has another form.
    """
    pattern, mark, words = text.rpartition("=")
    if not mark or not pattern.strip() or not words.strip(" ,"):
        raise BadValue(f"{text!r} is not GLOB=CODE,...", hint="--per-file-ignores 'tests/*=COL002'")
    return pattern.strip(), split_words(words)


def save_baseline(name: str, report: Report) -> int:
    """Write all findings that count to a file; return how many they are.

    Raises:
        OutputError: the file cannot be written.
    """
    from ddpdoctor.cli.outputs import write_file
    from ddpdoctor.report.baseline import write_baseline

    write_file(Path(name), write_baseline(report.findings))
    return sum(each.state == "active" and bool(each.where) for each in report.findings)
