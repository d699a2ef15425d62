"""``ddpdoctor lint``: mistakes that stand in the source, found without running it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ddpdoctor.cli.arguments import options as common
from ddpdoctor.cli.arguments.values import require_path
from ddpdoctor.cli.fixing import (
    add_fixing_options,
    check_fixing,
    count_correctable,
    format_diff,
    write_corrections,
)
from ddpdoctor.cli.hiding import add_hiding_options, make_excluder, make_suppressor, save_baseline
from ddpdoctor.errors import EXIT_OK, DoctorError

if TYPE_CHECKING:
    from ddpdoctor.evidence import Evidence
    from ddpdoctor.judge.rules import LintRule
    from ddpdoctor.judge.selection import Selection
    from ddpdoctor.plugins import Plugins
    from ddpdoctor.report.model import Report

EXAMPLES = (
    ("ddpdoctor lint train.py", "one script"),
    ("ddpdoctor lint .", "all scripts and notebooks in this directory, except what .gitignore excludes"),
    ("ddpdoctor lint src/ --fail-on warning", "exit 1 also for findings that are not proven on every path"),
    (
        "ddpdoctor lint . --write-baseline lint.json",
        "existing code: current findings are ignored from now on",
    ),
    ("ddpdoctor lint . --baseline lint.json", "only new findings"),
    ("ddpdoctor lint src/ --questions", "also what is likely wrong but not certain from the files"),
    ("ddpdoctor lint src/ --fix", "apply the safe corrections; --diff shows them first"),
    ("ddpdoctor lint src/ --format json -o lint.json", "for another program"),
    ("git show HEAD:train.py | ddpdoctor lint -", "from a pipe"),
)
REASONS_SHOWN = 5
"""Files that could not be read which a message names; the report has all of them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``lint``."""
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", help="scripts, notebooks, directories; - is a script on stdin"
    )
    common.add_output_options(parser)
    common.add_selection_options(parser)
    parser.add_argument(
        "--questions",
        action="store_true",
        help="show what is likely wrong and is not decided by the files; never counts for the exit code",
    )
    add_hiding_options(parser)
    add_fixing_options(parser)
    common.add_fail_option(parser)
    common.add_verbosity_options(parser)


def run(options: argparse.Namespace) -> int:
    """Read, judge, correct where that was asked for, show."""
    from ddpdoctor.cli.arguments.select import choose_selection
    from ddpdoctor.cli.check import exit_code
    from ddpdoctor.cli.output.display import Display, complain, print_text
    from ddpdoctor.cli.outputs import deliver, render_options
    from ddpdoctor.plugins import load_plugins
    from ddpdoctor.report.words import count

    check_paths(options.paths)
    check_fixing(options)
    plugins = load_plugins()
    selection = choose_selection(options, {c: page.name for c, page in plugins.checks.pages.items()})
    outputs = common.pair_outputs(options, plugins.renderers.names)
    display = Display.of(sys.stdout, no_color=getattr(options, "no_color", False))
    report = examine(options, plugins, selection)
    if report is None:
        complain("ddpdoctor: nothing was read: all given files are excluded")
        return EXIT_OK
    if getattr(options, "fix", False):
        report = _fix(report, options, plugins, selection)
    _tell_unread(report)
    report = _keep_questions(report, options)
    level = getattr(options, "fail_on", "error")
    if (baseline := getattr(options, "write_baseline", None)) is not None:
        complain(
            f"ddpdoctor: {count(save_baseline(baseline, report), 'finding')} in {baseline}, for --baseline"
        )
        return EXIT_OK
    if getattr(options, "diff", False):
        print_text(format_diff(report))
        return exit_code(report, level)
    shown = render_options(display, verbosity=common.verbosity(options), pages=plugins.checks.pages)
    failed = deliver(report, outputs, plugins.renderers, shown)
    _offer_fixes(report, options)
    return failed or exit_code(report, level)


def examine(options: argparse.Namespace, plugins: Plugins, selection: Selection) -> Report | None:
    """Read and judge all that was given; None where all of it is excluded."""
    from ddpdoctor.gather.scrub import scrub_argv
    from ddpdoctor.report.build import build_report

    started, began = datetime.now(timezone.utc), time.monotonic()
    evidence = gather(options.paths, plugins.checks.lint_rules, make_excluder(options))
    if not evidence.sources:
        return None
    names = {code: page.name for code, page in plugins.checks.pages.items()}
    return build_report(
        evidence,
        registry=plugins.checks,
        started_at=started,
        duration_s=time.monotonic() - began,
        invocation=scrub_argv(options.invocation),
        selection=selection,
        extra_rows=[problem.to_row() for problem in plugins.problems],
        suppressor=make_suppressor(options, evidence.sources, names),
    )


def _fix(report: Report, options: argparse.Namespace, plugins: Plugins, selection: Selection) -> Report:
    """Write the corrections; return what is left, read again."""
    from ddpdoctor.cli.output.display import complain
    from ddpdoctor.report.words import count

    before, written = count_correctable(report), write_corrections(report)
    if not written:
        return report
    again = examine(options, plugins, selection) or report
    done = before - count_correctable(again)
    complain(f"ddpdoctor: {count(done, 'finding')} corrected in {count(written, 'file')}")
    return again


def _keep_questions(report: Report, options: argparse.Namespace) -> Report:
    """Return the report without its questions, unless they were asked for; say how many there are beside findings."""
    from ddpdoctor.cli.output.display import complain
    from ddpdoctor.judge.finding import QUESTION
    from ddpdoctor.report.words import count

    kept = [each for each in report.findings if each.role != QUESTION]
    number = sum(each.role == QUESTION and each.state == "active" for each in report.findings)
    if getattr(options, "questions", False) or len(kept) == len(report.findings):
        return report
    if number and report.verdict.status != "healthy" and common.verbosity(options) >= 0:
        complain(f"ddpdoctor: {count(number, 'question')} not shown, see --questions")
    return replace(report, findings=tuple(kept))


def _offer_fixes(report: Report, options: argparse.Namespace) -> None:
    from ddpdoctor.cli.output.display import complain

    number = count_correctable(report)
    if number and not getattr(options, "fix", False) and common.verbosity(options) >= 0:
        complain(f"ddpdoctor: --fix can correct {number} of these; --diff shows how")


def _tell_unread(report: Report) -> None:
    from ddpdoctor.cli.output.display import complain

    sources = report.evidence.sources
    unread = [f"{each.name} was not read: {each.problem}" for each in sources if each.problem]
    unread += [f"{each.name}: not read: {part}" for each in sources for part in each.skipped]
    for words in unread[:REASONS_SHOWN]:
        complain(f"ddpdoctor: {words}")
    if len(unread) > REASONS_SHOWN:
        complain(f"ddpdoctor: and {len(unread) - REASONS_SHOWN} more files that were not read, see --json")


def check_paths(paths: Sequence[str]) -> None:
    """Return only where all that was given exists.

    Raises:
        UsageError: a path does not exist.
    """
    for name in paths:
        if name != "-":
            require_path(name, hint="ddpdoctor lint train.py")


def gather(paths: Sequence[str], rules: Sequence[LintRule], excluded: Callable[[str], bool]) -> Evidence:
    """Read everything that is not excluded.

    Args:
        paths: what was given.
        rules: what to look for.
        excluded: whether a path is not to be read.

    Raises:
        DoctorError: nothing of what was given could be read.
    """
    from ddpdoctor.cli.outputs import make_cleaner
    from ddpdoctor.evidence import Absent, Evidence, Launch
    from ddpdoctor.evidence.bundle import KINDS
    from ddpdoctor.source.gather import read_sources

    met = False

    def ask(name: str) -> bool:
        nonlocal met
        left_out = excluded(name)
        met = met or left_out
        return left_out

    stdin = sys.stdin.buffer.read() if "-" in paths else b""
    # Here and not only in what is shown: a baseline's fingerprints are made of lines of source.
    files = make_cleaner().clean(read_sources(paths, rules, stdin=stdin, excluded=ask))
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
