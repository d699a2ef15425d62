"""``ddpdoctor analyze``: the verdict after the fact, from what a job left behind."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from ddpdoctor.cli.arguments import options as common
from ddpdoctor.errors import EXIT_FINDINGS

if TYPE_CHECKING:
    from ddpdoctor.report.model import Report

EXAMPLES = (
    ("ddpdoctor analyze train.log", "saved output of torchrun; gzip works too"),
    ("ddpdoctor analyze ddpdoctor-runs/20260102-030405-ab12", "a run directory of ddpdoctor run"),
    ("ddpdoctor analyze node-a.log node-b.log", "logs of several nodes together"),
    ("ddpdoctor analyze logs/", "a torchrun --log-dir tree, with its error files"),
    ("ddpdoctor analyze /tmp/nccl_trace/", "Flight Recorder dumps (pickle or JSON)"),
    ("ddpdoctor analyze node-a.tar.gz node-b.tar.gz", "archives of ddpdoctor collect, one per node"),
    ("kubectl logs job/train | ddpdoctor analyze -", "from a pipe"),
)
REASONS_SHOWN = 5
"""Sentences on what could not be read; the report has all of them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``analyze``."""
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help=(
            "run directories, logs, error files, Flight Recorder dumps, stack dumps, archives, or folders "
            "of them; - is stdin"
        ),
    )
    common.add_output_options(parser)
    common.add_selection_options(parser)
    common.add_fail_option(parser)
    common.add_verbosity_options(parser)


def run(options: argparse.Namespace) -> int:
    """Read, judge, show."""
    from ddpdoctor.api.analyzing import analyze_sources, sort_paths
    from ddpdoctor.cli.arguments.select import choose_selection
    from ddpdoctor.cli.output.display import Display, complain
    from ddpdoctor.cli.outputs import deliver, render_options
    from ddpdoctor.plugins import load_plugins

    sources = sort_paths(options.paths)
    plugins = load_plugins()
    selection = choose_selection(options, {code: page.name for code, page in plugins.checks.pages.items()})
    outputs = common.pair_outputs(options, plugins.renderers.names)
    display = Display.of(sys.stdout, no_color=getattr(options, "no_color", False))
    piped = cast(io.BufferedIOBase, sys.stdin.buffer) if "-" in options.paths else None
    report = analyze_sources(sources, plugins, selection, piped=piped, invocation=options.invocation)
    if common.verbosity(options) >= 0:
        for sentence in _lost(report, sources.skipped):
            complain(f"ddpdoctor: {sentence}")
    shown = render_options(display, verbosity=common.verbosity(options), pages=plugins.checks.pages)
    failed = deliver(report, outputs, plugins.renderers, shown)
    return failed or choose_exit_code(report, getattr(options, "fail_on", "error"))


def choose_exit_code(report: Report, fail_on: str) -> int:
    """Return the exit code: a job that failed is a problem even where nothing shows why."""
    from ddpdoctor.cli.check import exit_code
    from ddpdoctor.report.build import describe_failure

    if fail_on != "never" and report.verdict.status == "problems" and describe_failure(report.evidence):
        return EXIT_FINDINGS
    return exit_code(report, fail_on)


def _lost(report: Report, skipped: Sequence[str]) -> list[str]:
    said = [end.lost for end in report.evidence.job] + [log.lost for log in report.evidence.calls]
    sentences = list(dict.fromkeys([*(sentence for each in said for sentence in each), *skipped]))
    more = len(sentences) - REASONS_SHOWN
    return sentences if more <= 0 else [*sentences[:REASONS_SHOWN], f"and {more} more, see --json"]
