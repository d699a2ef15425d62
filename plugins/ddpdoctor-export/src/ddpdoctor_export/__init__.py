"""``ddpdoctor-export``: a saved report to where a team looks at its jobs.

A command and no renderer: a renderer returns one text, while event files are binary and spans are sent.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import ddpdoctor

FAILED = 3
"""Exit code where nothing was written, as of ddpdoctor's own commands."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="ddpdoctor-export", description=__doc__.splitlines()[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    board = kinds.add_parser("tensorboard", help="findings as text, lag of each rank and counts as curves")
    board.add_argument("report", help="report.json, or a run directory")
    board.add_argument("--logdir", required=True, help="directory that TensorBoard is started with")
    spans = kinds.add_parser(
        "opentelemetry", help="a span with an event for each finding, and gauges, over OTLP/HTTP"
    )
    spans.add_argument("report", help="report.json, or a run directory")
    spans.add_argument(
        "--endpoint", help="of the collector (OTEL_EXPORTER_OTLP_ENDPOINT, http://localhost:4318)"
    )
    options = parser.parse_args(arguments)
    try:
        report = ddpdoctor.load_report(options.report)
        if options.kind == "tensorboard":
            from ddpdoctor_export.board import write

            write(report, options.logdir)
        else:
            from ddpdoctor_export.telemetry import send

            send(report, options.endpoint)
    except ddpdoctor.DoctorError as problem:
        return _complain(problem.message, problem.hint)
    except ModuleNotFoundError as problem:
        return _complain(
            f"{problem.name} is not installed", f"pip install 'ddpdoctor-export[{options.kind}]'"
        )
    except OSError as problem:
        return _complain(str(problem), None)
    return 0


def _complain(what: str, hint: str | None) -> int:
    print(f"ddpdoctor-export: {what}", file=sys.stderr)
    if hint:
        print(f"  try: {hint}", file=sys.stderr)
    return FAILED
