"""``ddpdoctor report FILE.json``: render a saved report again."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ddpdoctor.cli.arguments import options as common
from ddpdoctor.cli.arguments.parsing import add_option
from ddpdoctor.errors import EXIT_FAILED, EXIT_OK, UsageError

if TYPE_CHECKING:
    pass

EXAMPLES = (
    ("ddpdoctor report report.json", "show it in the terminal"),
    ("ddpdoctor report report.json --html report.html", "write the HTML report"),
    ("ddpdoctor report report.json --why", "from the evidence to the verdict, and what was ruled out"),
    ("ddpdoctor report before.json --compare after.json", "two runs: resolved and new findings"),
    ("ssh node cat report.json | ddpdoctor report - --html report.html", "from a pipe"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``report``."""
    parser.add_argument("file", metavar="FILE.json", help="what --json wrote; - is stdin")
    add_option(
        parser,
        "--compare",
        metavar="OTHER.json",
        help="compare with another report: resolved and new findings",
    )
    add_option(
        parser,
        "--why",
        metavar="CODE",
        nargs="?",
        const="",
        help="show what a finding follows from, and what was ruled out; without CODE, for all findings",
    )
    common.add_output_options(parser)
    common.add_verbosity_options(parser)


def run(options: argparse.Namespace) -> int:
    """Render the report; the exit code says only whether that worked."""
    from ddpdoctor.aftermath.saved import read_report
    from ddpdoctor.cli.output.display import Display
    from ddpdoctor.cli.outputs import deliver, render_options
    from ddpdoctor.plugins import load_plugins

    if getattr(options, "compare", None) is not None:
        return _compare(options)
    if getattr(options, "why", None) is not None:
        return _explain(options)
    plugins = load_plugins()
    outputs = common.pair_outputs(options, plugins.renderers.names)
    report = read_report(options.file)
    level = common.verbosity(options)
    display = Display.of(sys.stdout, no_color=getattr(options, "no_color", False))
    shown = render_options(display, verbosity=level, pages=plugins.checks.pages)
    return EXIT_FAILED if deliver(report, outputs, plugins.renderers, shown) else EXIT_OK


def _explain(options: argparse.Namespace) -> int:
    """Say why a report says what it says.

    Raises:
        UsageError: outputs were asked for, or the report has no such finding.
    """
    from ddpdoctor.aftermath.saved import read_report
    from ddpdoctor.cli.output.display import Display, print_text
    from ddpdoctor.cli.outputs import clean_report, render_options
    from ddpdoctor.plugins import load_plugins
    from ddpdoctor.report.why import explain_findings

    again = f"ddpdoctor report {options.file} --why"
    if any(getattr(options, name, None) for name in ("formats", "outputs", "compare")):
        raise UsageError("--why is shown in the terminal and has no other form", hint=again)
    display = Display.of(sys.stdout, no_color=getattr(options, "no_color", False))
    shown = render_options(display, verbosity=common.verbosity(options), pages=load_plugins().checks.pages)
    report = clean_report(read_report(options.file))
    try:
        print_text(explain_findings(report, shown, options.why.upper() or None))
    except LookupError:
        codes = sorted({each.code for each in report.findings if each.state == "active"})
        told = f"it has {', '.join(codes)}" if codes else "it has none"
        raise UsageError(f"the report has no finding {options.why.upper()}; {told}", hint=again) from None
    return EXIT_OK


def _compare(options: argparse.Namespace) -> int:
    """Say what differs between two reports.

    Raises:
        UsageError: outputs were asked for, which only one report can be rendered to, or both are stdin.
    """
    from ddpdoctor.aftermath.saved import read_report
    from ddpdoctor.cli.output.display import Display, print_text
    from ddpdoctor.cli.outputs import clean_report, render_options
    from ddpdoctor.report.compare import compare_reports

    again = f"ddpdoctor report {options.file} --compare {options.compare}"
    if any(getattr(options, name, None) for name in ("formats", "outputs")):
        raise UsageError("a comparison is shown in the terminal only", hint=again)
    if options.file == options.compare == "-":
        raise UsageError(
            "only one of the two reports can come from stdin", hint="ddpdoctor report - --compare OTHER.json"
        )
    display = Display.of(sys.stdout, no_color=getattr(options, "no_color", False))
    shown = render_options(display, verbosity=common.verbosity(options))
    before, after = (clean_report(read_report(name)) for name in (options.file, options.compare))
    print_text(compare_reports(before, after, (options.file, options.compare), shown))
    return EXIT_OK
