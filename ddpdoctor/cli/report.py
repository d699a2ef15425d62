"""``ddpdoctor report FILE.json``: render a saved report again."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.cli import options as common
from ddpdoctor.cli.parsing import add_option
from ddpdoctor.errors import EXIT_FAILED, EXIT_OK, DoctorError, UsageError

if TYPE_CHECKING:
    from ddpdoctor.report.model import Report

EXAMPLES = (
    ("ddpdoctor report report.json", "show it in the terminal"),
    ("ddpdoctor report report.json --html report.html", "and make the page"),
    ("ddpdoctor report before.json --compare after.json", "two runs: what is gone, and what is new"),
    ("ssh node cat report.json | ddpdoctor report - --html report.html", "from a pipe"),
)
SIZE_LIMIT = 4 << 30
"""Bytes of a report: those of 16,384 ranks have some 200 MB."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``report``."""
    parser.add_argument("file", metavar="FILE.json", help="what --json wrote; - is stdin")
    add_option(
        parser, "--compare", metavar="OTHER.json", help="say what is gone and what is new in another report"
    )
    common.add_output_options(parser)
    common.add_verbosity_options(parser)


def run(options: argparse.Namespace) -> int:
    """Render the report; the exit code says only whether that worked."""
    from ddpdoctor.cli.display import Display
    from ddpdoctor.cli.outputs import deliver, render_options
    from ddpdoctor.plugins import load_plugins

    if getattr(options, "compare", None) is not None:
        return _compare(options)
    plugins = load_plugins()
    outputs = common.pair_outputs(options, plugins.renderers.names)
    report = read_report(options.file)
    level = common.verbosity(options)
    display = Display.of(sys.stdout, no_color=getattr(options, "no_color", False))
    shown = render_options(display, verbosity=level, pages=plugins.checks.pages)
    return EXIT_FAILED if deliver(report, outputs, plugins.renderers, shown) else EXIT_OK


def _compare(options: argparse.Namespace) -> int:
    """Say what differs between two reports.

    Raises:
        UsageError: outputs were asked for, which only one report can be rendered to, or both are stdin.
    """
    from ddpdoctor.cli.display import Display, print_text
    from ddpdoctor.cli.outputs import clean_report, render_options
    from ddpdoctor.report.compare import compare_reports

    again = f"ddpdoctor report {options.file} --compare {options.compare}"
    if any(getattr(options, name, None) for name in ("formats", "outputs")):
        raise UsageError("a comparison is shown in the terminal and has no other form", hint=again)
    if options.file == options.compare == "-":
        raise UsageError(
            "both reports cannot come from stdin", hint="ddpdoctor report - --compare OTHER.json"
        )
    display = Display.of(sys.stdout, no_color=getattr(options, "no_color", False))
    shown = render_options(display, verbosity=common.verbosity(options))
    before, after = (clean_report(read_report(name)) for name in (options.file, options.compare))
    print_text(compare_reports(before, after, (options.file, options.compare), shown))
    return EXIT_OK


def read_report(name: str) -> Report:
    """Read a saved report; ``-`` is stdin.

    Raises:
        UsageError: there is no such file.
        DoctorError: it cannot be read, or is not a report that this version knows.
    """
    from ddpdoctor.gather.files import UNREADABLE
    from ddpdoctor.report.model import Report

    shown = "stdin" if name == "-" else name
    try:
        data = sys.stdin.buffer.read() if name == "-" else _read_file(Path(name))
    except FileNotFoundError as problem:
        raise UsageError(
            f"there is no file {name}", hint="ddpdoctor check --nproc 4 --json report.json"
        ) from problem
    except (*UNREADABLE, ValueError) as problem:
        raise UsageError(
            f"{shown} cannot be read: {getattr(problem, 'strerror', None) or problem}"
        ) from problem
    try:
        return Report.from_dict(json.loads(data.decode("utf-8")))
    except (UnicodeDecodeError, RecursionError, json.JSONDecodeError) as problem:
        raise DoctorError(
            f"{shown} is not JSON: {problem}", hint="give the file that --json wrote"
        ) from problem
    except ValueError as problem:
        raise DoctorError(f"{shown}: {problem}", hint="give the file that --json wrote") from problem


def _read_file(path: Path) -> bytes:
    """Read a file, or what a shell's ``<(…)`` gives; a file that is compressed is unpacked, up to `SIZE_LIMIT`."""
    from ddpdoctor.gather.files import open_log, read_some

    if not os.path.isfile(path):
        return path.read_bytes()
    with open_log(path) as stream:
        return read_some(stream, SIZE_LIMIT)
