"""Analyze: from what a job left behind to a report."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.api.given_paths import require_path
from ddpdoctor.errors import DoctorError

if TYPE_CHECKING:
    from ddpdoctor.aftermath import Sources
    from ddpdoctor.judge.runner import CheckRow
    from ddpdoctor.judge.selection import Selection
    from ddpdoctor.plugins import Plugins
    from ddpdoctor.report.model import Report

REASONS_SHOWN = 5
"""Reasons in a message about paths that could not be read; the report has all of them."""


def sort_paths(paths: Sequence[str]) -> Sources:
    """Sort what was given into what can be read and what cannot.

    Raises:
        UsageError: a path does not exist.
    """
    from ddpdoctor.aftermath import Sources

    sources = Sources()
    for name in paths:
        if name == "-":
            continue
        require_path(name, hint="torchrun … train.py 2>&1 | tee train.log")
        sources.add(Path(name), named=True)
    return sources


def analyze_sources(
    sources: Sources,
    plugins: Plugins,
    selection: Selection,
    *,
    piped: io.BufferedIOBase | None = None,
    invocation: Sequence[str] = (),
) -> Report:
    """Gather the evidence and diagnose it.

    Args:
        sources: what was given, sorted; what cannot be read is added to them.
        plugins: the checks.
        selection: codes that the user wants to see.
        piped: a log that is no file.
        invocation: the command line, for the report.

    Raises:
        DoctorError: nothing of what was given could be read.
    """
    from ddpdoctor.aftermath.gathering import gather
    from ddpdoctor.gather.scrub import scrub_argv
    from ddpdoctor.report.build import build_report
    from ddpdoctor.report.model import Job

    started, began = datetime.now(timezone.utc), time.monotonic()
    evidence = gather(sources, stdin=piped)
    if evidence is None:
        shown = sources.skipped[:REASONS_SHOWN]
        raise DoctorError(
            "none of the given files could be read",
            context="; ".join(shown) or None,
            hint="ddpdoctor analyze LOG, where LOG is the saved output of torchrun",
        )
    end = evidence.job[0] if evidence.job else None
    return build_report(
        evidence,
        registry=plugins.checks,
        started_at=started,
        duration_s=time.monotonic() - began,
        invocation=scrub_argv(invocation),
        selection=selection,
        extra_rows=[*(problem.to_row() for problem in plugins.problems), *_rows_of_cut(sources)],
        job=Job(end.exit_code, end.signal) if end is not None else None,
    )


def _rows_of_cut(sources: Sources) -> list[CheckRow]:
    """Return a row that keeps a verdict from being good where a log was not read to its end."""
    from ddpdoctor.judge.runner import CheckRow

    if not sources.cut:
        return []
    reason = "; ".join(sources.cut[:REASONS_SHOWN])
    return [CheckRow("analyze.read-in-full", (), "crash", "unknown", reason, 0.0, "ddpdoctor")]
