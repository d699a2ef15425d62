"""What is not to be read or not to count: exclusions, codes for some files, and a baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.api.choosing import choose_words
from ddpdoctor.errors import DoctorError, UsageError
from ddpdoctor.source.files.patterns import compile_paths, find_pyproject

if TYPE_CHECKING:
    from ddpdoctor.evidence.sources import SourceFile
    from ddpdoctor.judge.suppression import BaselineEntry, Suppressor

MOST_BYTES = 64 << 20
"""Most bytes of a baseline that is read: some two hundred thousand findings."""


def make_excluder(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Return whether a path is not to be read.

    Raises:
        UsageError: a pattern is not valid.
    """
    return _compile("--exclude", patterns)


def make_suppressor(
    rules: Iterable[tuple[str, Sequence[str]]],
    baseline: tuple[BaselineEntry, ...],
    sources: Iterable[SourceFile],
    names: Mapping[str, str],
) -> Suppressor:
    """Return what marks findings that are not to count.

    Args:
        rules: pattern of paths and the codes, prefixes or names that do not count there.
        baseline: findings that are known already.
        sources: what was read.
        names: code -> name of all findings.

    Raises:
        UsageError: a pattern is not valid, or a word is no code.
    """
    from ddpdoctor.judge.suppression import Suppressor

    option = "--per-file-ignores"
    meant = [(_compile(option, [each]), choose_words(option, words, names)) for each, words in rules]
    known: dict[str, frozenset[str]] = {}

    def ignored_in(file: str) -> frozenset[str]:
        if file not in known:
            known[file] = frozenset(code for applies, codes in meant if applies(file) for code in codes)
        return known[file]

    return Suppressor(sources, names, ignored_in=ignored_in, baseline=baseline)


def load_baseline(name: str | None) -> tuple[BaselineEntry, ...]:
    """Return the findings of a baseline; none where no file is named.

    Raises:
        UsageError: there is no such file.
        DoctorError: it cannot be read, or is none.
    """
    from ddpdoctor.report.baseline import read_baseline

    if name is None:
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


def _compile(option: str, patterns: Iterable[str]) -> Callable[[str], bool]:
    here = Path.cwd()
    project = find_pyproject(here)
    roots = [here] if project is None else [here, project.parent]
    try:
        return compile_paths(patterns, roots)
    except ValueError as problem:
        raise UsageError(
            f"{option}: {str(problem)!r} is not a valid path pattern", hint="*_old.py"
        ) from problem
