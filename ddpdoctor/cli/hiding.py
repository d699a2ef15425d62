"""What ``lint`` is told not to read or not to count: exclusions, codes for some files, and a baseline."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.cli.arguments.config import find_pyproject
from ddpdoctor.cli.arguments.options import split_words
from ddpdoctor.cli.arguments.parsing import BadValue, add_option
from ddpdoctor.cli.arguments.select import choose_words
from ddpdoctor.errors import DoctorError, UsageError

if TYPE_CHECKING:
    from ddpdoctor.evidence.sources import SourceFile
    from ddpdoctor.judge.suppression import BaselineEntry, Suppressor
    from ddpdoctor.report.model import Report

MOST_BYTES = 64 << 20
"""Of a baseline that is read: some two hundred thousand findings."""


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


def make_excluder(options: argparse.Namespace) -> Callable[[str], bool]:
    """Return whether a path is not to be read.

    Raises:
        UsageError: a pattern is not valid.
    """
    return _compile("--exclude", getattr(options, "exclude", ()))


def make_suppressor(
    options: argparse.Namespace, sources: Iterable[SourceFile], names: Mapping[str, str]
) -> Suppressor:
    """Return what marks findings that are not to count.

    Args:
        options: parsed options.
        sources: what was read.
        names: code -> name of all findings.

    Raises:
        UsageError: a pattern is not valid, a word is no code, or there is no such baseline.
        DoctorError: the baseline cannot be read.
    """
    from ddpdoctor.judge.suppression import Suppressor

    option = "--per-file-ignores"
    rules = [
        (_compile(option, [pattern]), choose_words(option, words, names))
        for pattern, words in getattr(options, "per_file_ignores", ())
    ]
    known: dict[str, frozenset[str]] = {}

    def ignored_in(file: str) -> frozenset[str]:
        if file not in known:
            known[file] = frozenset(code for meant, codes in rules if meant(file) for code in codes)
        return known[file]

    return Suppressor(sources, names, ignored_in=ignored_in, baseline=load_baseline(options))


def load_baseline(options: argparse.Namespace) -> tuple[BaselineEntry, ...]:
    """Return the baseline that was given; none where a new one is written.

    Raises:
        UsageError: there is no such file.
        DoctorError: it cannot be read, or is none.
    """
    from ddpdoctor.report.baseline import read_baseline

    name = getattr(options, "baseline", None)
    if name is None or getattr(options, "write_baseline", None) is not None:
        return ()
    again = f"ddpdoctor lint . --write-baseline {name}"
    try:
        path = Path(name)
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"larger than {MOST_BYTES >> 20} MiB")
        return read_baseline(path.read_text("utf-8"))
    except FileNotFoundError as problem:
        raise UsageError(f"there is no baseline {name}", hint=again) from problem
    except (OSError, ValueError) as problem:
        why = getattr(problem, "strerror", None) or problem
        raise DoctorError(f"the baseline {name} cannot be read: {why}", hint=again) from problem


def save_baseline(name: str, report: Report) -> int:
    """Write all findings that count to a file; return how many they are.

    Raises:
        OutputError: the file cannot be written.
    """
    from ddpdoctor.cli.outputs import write_file
    from ddpdoctor.report.baseline import write_baseline

    write_file(Path(name), write_baseline(report.findings))
    return sum(each.state == "active" and bool(each.where) for each in report.findings)


def _compile(option: str, patterns: Iterable[str]) -> Callable[[str], bool]:
    from ddpdoctor.source.patterns import compile_paths

    here = Path.cwd()
    project = find_pyproject(here)
    roots = [here] if project is None else [here, project.parent]
    try:
        return compile_paths(patterns, roots)
    except ValueError as problem:
        raise UsageError(
            f"{option}: {str(problem)!r} is not a valid path pattern", hint="*_old.py"
        ) from problem
