"""Lint: from paths or a text to a report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.api.choosing import name_codes
from ddpdoctor.api.given_paths import require_path
from ddpdoctor.api.rendering import make_cleaner
from ddpdoctor.api.suppressing import load_baseline, make_excluder, make_suppressor
from ddpdoctor.errors import DoctorError

if TYPE_CHECKING:
    from ddpdoctor.evidence import Evidence
    from ddpdoctor.judge.rules import LintRule
    from ddpdoctor.judge.selection import Selection
    from ddpdoctor.plugins import Plugins
    from ddpdoctor.report.model import Report
    from ddpdoctor.source.fixes import Wanted

REASONS_SHOWN = 5
"""Files that could not be read which a message names; the report has all of them."""


@dataclass(frozen=True, slots=True)
class LintRequest:
    """What is to be read, and what of it is not to count."""

    paths: tuple[str, ...]
    """Scripts, notebooks, directories; ``-`` is ``text``."""
    text: bytes = b""
    exclude: tuple[str, ...] = ()
    """Patterns of paths that are not read."""
    per_file_ignores: tuple[tuple[str, Sequence[str]], ...] = ()
    """Pattern of paths, and what does not count there: codes, prefixes or names."""
    baseline: str | None = None
    """File with findings that are known already."""
    invocation: tuple[str, ...] = ()
    """The command line, for the report."""


@dataclass(frozen=True, slots=True)
class Correction:
    """What the safe corrections make of one file."""

    file: str
    """Name of the file as findings have it."""
    before: bytes
    after: bytes


def lint_sources(request: LintRequest, plugins: Plugins, selection: Selection) -> Report | None:
    """Read all that was given and diagnose it; None where all of it is excluded.

    Raises:
        UsageError: a path does not exist, a pattern is not valid, or there is no such baseline or code.
        DoctorError: nothing of what was given could be read.
    """
    from ddpdoctor.gather.scrub import scrub_argv
    from ddpdoctor.report.build import build_report

    check_paths(request.paths)
    started, began = datetime.now(timezone.utc), time.monotonic()
    evidence = _gather(request, plugins.checks.lint_rules)
    if not evidence.sources:
        return None
    known = load_baseline(request.baseline)
    return build_report(
        evidence,
        registry=plugins.checks,
        started_at=started,
        duration_s=time.monotonic() - began,
        invocation=scrub_argv(request.invocation),
        selection=selection,
        extra_rows=[problem.to_row() for problem in plugins.problems],
        suppressor=make_suppressor(request.per_file_ignores, known, evidence.sources, name_codes(plugins)),
    )


def drop_questions(report: Report) -> Report:
    """Return the report without what is likely and undecided."""
    from ddpdoctor.judge.finding import QUESTION

    kept = tuple(each for each in report.findings if each.role != QUESTION)
    return report if len(kept) == len(report.findings) else replace(report, findings=kept)


def check_paths(paths: Sequence[str]) -> None:
    """Return only where all that was given exists.

    Raises:
        UsageError: a path does not exist.
    """
    for name in paths:
        if name != "-":
            require_path(name, hint="ddpdoctor lint train.py")


def count_correctable(report: Report) -> int:
    """Return how many of the findings that count have a safe correction."""
    return sum(len(wanted) for wanted in _find_wanted(report).values())


def make_corrections(report: Report, refuse: Callable[[str], object]) -> Iterator[Correction]:
    """Yield each file that can be corrected, with what it holds and what it would hold.

    Args:
        report: of `lint`.
        refuse: called with a sentence for each file, or place in it, that is not corrected.
    """
    from ddpdoctor.source.fixes import Refused, correct

    for name, wanted in sorted(_find_wanted(report).items()):
        try:
            data = Path(name).read_bytes()
            corrected, reasons = correct(data, name, wanted)
        except (Refused, OSError) as why:
            refuse(f"{name} was not corrected: {getattr(why, 'strerror', None) or why}")
            continue
        for reason in reasons:
            refuse(f"{name} was not corrected in {reason}")
        if corrected != data:
            yield Correction(name, data, corrected)


def _find_wanted(report: Report) -> dict[str, list[Wanted]]:
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


def _gather(request: LintRequest, rules: Sequence[LintRule]) -> Evidence:
    """Read everything that is not excluded.

    Raises:
        DoctorError: nothing of what was given could be read.
    """
    from ddpdoctor.evidence import Absent, Evidence, Launch
    from ddpdoctor.evidence.bundle import KINDS
    from ddpdoctor.source.gather import read_sources

    excluded = make_excluder(request.exclude)
    met = False

    def ask(name: str) -> bool:
        nonlocal met
        left_out = excluded(name)
        met = met or left_out
        return left_out

    # Here and not only in what is shown: a baseline's fingerprints are made of lines of source.
    files = make_cleaner().clean(read_sources(request.paths, rules, stdin=request.text, excluded=ask))
    if not files and met:
        return Evidence(launch=Launch("lint", nproc=0, world_size=0, backend="none"))
    if all(each.problem for each in files):
        reasons = [f"{each.name}: {each.problem}" for each in files[:REASONS_SHOWN]]
        raise DoctorError(
            "none of the given files could be read",
            context="; ".join(reasons) or "no Python file was found",
            hint="ddpdoctor lint train.py",
        )
    why = Absent("only source was read", applicable=False)
    return Evidence(
        launch=Launch("lint", nproc=0, world_size=0, backend="none"),
        sources=files,
        absent={kind: why for kind in KINDS if kind != "sources"},
    )
