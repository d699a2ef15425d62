"""``ddpdoctor lint``: mistakes that stand in the source, found without running it."""

from __future__ import annotations

import argparse
import gc
import sys
from typing import TYPE_CHECKING

from ddpdoctor.cli.arguments import options as common
from ddpdoctor.cli.exclusions import add_hiding_options, save_baseline
from ddpdoctor.cli.fixing import add_fixing_options, check_fixing, format_diff, write_corrections
from ddpdoctor.errors import EXIT_OK

if TYPE_CHECKING:
    from ddpdoctor.api.linting import LintRequest
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
    from ddpdoctor.source.files.workers import no_collection

    with no_collection():
        code = _lint(options)
        gc.freeze()  # to look through what was read takes as long as to read it, and the process ends
    return code


def _lint(options: argparse.Namespace) -> int:
    from ddpdoctor.api.linting import check_paths, lint_sources
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
    request = read_request(options)
    report = lint_sources(request, plugins, selection)
    if report is None:
        complain("ddpdoctor: nothing was read: all given files are excluded")
        return EXIT_OK
    if getattr(options, "fix", False):
        report = _fix(report, request, plugins, selection)
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


def read_request(options: argparse.Namespace) -> LintRequest:
    """Return what the options ask for; a script on stdin is read."""
    from ddpdoctor.api.linting import LintRequest

    return LintRequest(
        paths=tuple(options.paths),
        text=sys.stdin.buffer.read() if "-" in options.paths else b"",
        exclude=tuple(getattr(options, "exclude", ())),
        per_file_ignores=tuple(getattr(options, "per_file_ignores", ())),
        baseline=None if getattr(options, "write_baseline", None) else getattr(options, "baseline", None),
        invocation=tuple(options.invocation),
    )


def _fix(report: Report, request: LintRequest, plugins: Plugins, selection: Selection) -> Report:
    """Write the corrections; return what is left, read again."""
    from ddpdoctor.api.linting import count_correctable, lint_sources
    from ddpdoctor.cli.output.display import complain
    from ddpdoctor.report.words import count

    before, written = count_correctable(report), write_corrections(report)
    if not written:
        return report
    gc.collect()  # what was read before
    again = lint_sources(request, plugins, selection) or report
    done = before - count_correctable(again)
    complain(f"ddpdoctor: {count(done, 'finding')} corrected in {count(written, 'file')}")
    return again


def _keep_questions(report: Report, options: argparse.Namespace) -> Report:
    """Return the report without its questions, unless they were asked for; say how many there are beside findings."""
    from ddpdoctor.api.linting import drop_questions
    from ddpdoctor.cli.output.display import complain
    from ddpdoctor.judge.finding import QUESTION
    from ddpdoctor.report.words import count

    if getattr(options, "questions", False):
        return report
    number = sum(each.role == QUESTION and each.state == "active" for each in report.findings)
    if number and report.verdict.status != "healthy" and common.verbosity(options) >= 0:
        complain(f"ddpdoctor: {count(number, 'question')} not shown, see --questions")
    return drop_questions(report)


def _offer_fixes(report: Report, options: argparse.Namespace) -> None:
    from ddpdoctor.api.linting import count_correctable
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
