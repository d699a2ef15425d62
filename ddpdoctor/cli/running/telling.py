"""What `run` says beside its report: what was lost, where another report is, and what failed of ours."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ddpdoctor.cli.arguments import options as common
from ddpdoctor.cli.output.display import complain

if TYPE_CHECKING:
    from ddpdoctor.report.model import Report
    from ddpdoctor.watch.rundir import RunDirectory

LOST_SHOWN = 5
"""Sentences on lost evidence; with a full disk every stream of every rank has one."""


def tell_lost(report: Report, directory: RunDirectory) -> None:
    """Say what of the evidence is missing, but for what was said when it began."""
    lost = list(
        dict.fromkeys(text for end in report.evidence.job for text in end.lost if text != directory.note)
    )
    for text in lost[:LOST_SHOWN]:
        complain(f"ddpdoctor: lost: {text}")
    if len(lost) > LOST_SHOWN:
        complain(f"ddpdoctor: and {len(lost) - LOST_SHOWN} more, see report.json")


def tell_head(report: Report, directory: RunDirectory) -> None:
    """Say where the report on all nodes is."""
    from ddpdoctor.watch.nodes.sums import find_head

    head = find_head(directory.kept, report.evidence)
    if head is not None and head.arrived:
        complain(f"ddpdoctor: the report for all nodes is on {head.host}: {head.directory}/report.html")
    elif head is not None:
        complain(
            f"ddpdoctor: {head.host} did not receive the evidence of this node; for one verdict: ddpdoctor "
            f"analyze {directory.path} and {head.directory} of {head.host}"
        )


def complain_of(failure: BaseException, options: argparse.Namespace) -> None:
    """Say what failed of ours after the job had ended."""
    """Say what failed of ours when the job had ended."""
    if isinstance(failure, KeyboardInterrupt):
        complain("ddpdoctor: interrupted after the job had ended: the report is incomplete")
        return
    complain(f"ddpdoctor: internal error after the job: {type(failure).__name__}: {failure}")
    if common.verbosity(options) > 1:
        import traceback

        complain("".join(traceback.format_exception(failure)))
