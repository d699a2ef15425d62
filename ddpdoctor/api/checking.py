"""Check: from a request to a report, in this process or in one of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpdoctor.errors import DoctorError, UsageError

if TYPE_CHECKING:
    from ddpdoctor.evidence.gatherers import GathererRegistry
    from ddpdoctor.judge.selection import Selection
    from ddpdoctor.launch.ground import Ground
    from ddpdoctor.launch.request import CheckOutcome, CheckRequest, Progress
    from ddpdoctor.plugins import Plugins
    from ddpdoctor.report.model import Report

LINES_SHOWN = 5
"""Last lines that are shown of what a process said that ended without a report."""


def prepare(stages: Sequence[str]) -> Ground:
    """Begin to import torch, which takes longest, where stages need it; what is begun is ended by `launch` or ``with``.

    Args:
        stages: those that were asked for by name, none for all.
    """
    from ddpdoctor.launch.ground import Ground

    return Ground(stages)


def launch(
    request: CheckRequest, progress: Progress, gatherers: GathererRegistry, ground: Ground | None = None
) -> CheckOutcome:
    """Run the test job; a function of its own so that what it needs is imported no sooner."""
    from ddpdoctor.launch.check import run_check

    return run_check(request, progress, gatherers, ground)


def judge(outcome: CheckOutcome, plugins: Plugins, selection: Selection, invocation: Sequence[str]) -> Report:
    """Diagnose everything; plugins that failed get a row."""
    from ddpdoctor.gather.scrub import scrub_argv
    from ddpdoctor.plugins import GATHERERS, PluginProblem
    from ddpdoctor.report.build import build_report

    problems = [
        *plugins.problems,
        *(PluginProblem(f.source, GATHERERS, f"{f.name}: {f.text}") for f in outcome.gatherer_failures),
    ]
    return build_report(
        outcome.evidence,
        registry=plugins.checks,
        started_at=outcome.started_at,
        duration_s=outcome.duration_s,
        timings=outcome.timings,
        interrupted=outcome.interrupted,
        invocation=scrub_argv(invocation),
        selection=selection,
        extra_rows=[problem.to_row() for problem in problems],
    )


def check_apart(request: CheckRequest, select: Sequence[str] | None, ignore: Sequence[str]) -> Report:
    """Run a check in a process of its own, and return its report.

    A check takes over signals, adopts orphans and ends whatever it finds below itself: in the process of a notebook
    or of a test, the other children of that process would be among them.

    Raises:
        UsageError: the request contradicts the machine, or this process is a rank of a job.
        DoctorError: torch is missing, or the process ended without a report.
    """
    from ddpdoctor.report.model import Report

    _refuse_ranks()
    asked = {"request": dataclasses.asdict(request), "select": select, "ignore": list(ignore)}
    with tempfile.TemporaryDirectory(prefix="ddpdoctor-") as folder:
        answer = Path(folder, "answer.json")
        said = _run_child(json.dumps(asked), answer)
        if not os.path.isfile(answer):
            raise DoctorError(
                "the process that runs the check ended without a report",
                context=" / ".join(said.strip().splitlines()[-LINES_SHOWN:]) or None,
                hint="ddpdoctor check -vv, in a terminal",
            )
        given = json.loads(answer.read_text("utf-8"))
    if "report" in given:
        return Report.from_dict(given["report"])
    kind = UsageError if given["usage"] else DoctorError
    raise kind(given["message"], context=given["context"], hint=given["hint"])


def answer_request(asked: str, answer: Path) -> None:
    """Do what `check_apart` asks for, and write what came of it into a file: the report, or the error."""
    given: dict[str, Any]
    try:
        given = {"report": _check_here(json.loads(asked)).to_dict()}
    except DoctorError as problem:
        usage = isinstance(problem, UsageError)
        given = {"usage": usage, "message": problem.message, "context": problem.context, "hint": problem.hint}
    unfinished = answer.with_suffix(".part")
    unfinished.write_text(json.dumps(given), "utf-8")
    unfinished.replace(answer)


def _check_here(asked: dict[str, Any]) -> Report:
    from ddpdoctor.api.choosing import make_selection, name_codes
    from ddpdoctor.api.rendering import clean_report
    from ddpdoctor.launch.request import CheckRequest
    from ddpdoctor.plugins import load_plugins

    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in asked["request"].items()
    }
    plugins = load_plugins()
    selection = make_selection(asked["select"], asked["ignore"], name_codes(plugins))
    outcome = launch(CheckRequest(**fields), _Silence(), plugins.gatherers)
    return clean_report(judge(outcome, plugins, selection, ()))


class _Silence:
    """Progress that is shown nowhere."""

    def stage(self, name: str, limit_s: float) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Nothing was shown."""


def _run_child(asked: str, answer: Path) -> str:
    """Return what the process wrote; one that is interrupted with us has cleaned up before we return."""
    child = subprocess.Popen(
        [sys.executable, "-m", "ddpdoctor.api", str(answer)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        return child.communicate(asked)[0]
    except BaseException:
        child.terminate()
        child.communicate()
        raise


def _refuse_ranks() -> None:
    from ddpdoctor.gather.launcher import detect_launcher

    found = detect_launcher(os.environ)
    if found.is_rank:
        raise UsageError(
            f"check() launches ranks itself, and this process is already a rank ({found.launcher} started it)",
            hint="torchrun --nproc-per-node 4 -m ddpdoctor check; or call check() outside of the job",
        )
