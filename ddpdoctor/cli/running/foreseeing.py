"""What `run` reads in the script while its ranks start: what would hang later is said before the hours are spent."""

from __future__ import annotations

import argparse
import os
import shlex
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.cli.arguments.parsing import add_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddpdoctor.cli.running.preparing import Tools
    from ddpdoctor.evidence.job import CrashRecord, ExceptionRecord
    from ddpdoctor.judge.finding import Finding
    from ddpdoctor.plugins import Plugins
    from ddpdoctor.report.model import Report
    from ddpdoctor.watch.commandline import Split

WAIT_S = 2.0
"""Seconds to wait for the reading at the end of a job, which has long been done where the job took longer than to
start."""


def add_foreseeing_options(group: argparse._ActionsContainer) -> None:
    """Declare --no-lint."""
    add_option(group, "--no-lint", action="store_true", help="skip the pre-flight lint of the script")


class Foresight:
    """Reads the script in a thread beside the job. Nothing of it raises or changes how the run ends.

    Args:
        options: of the command.
        split: what is launched.
        load: gives what judging needs; called in the thread.
        say: prints one line.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        split: Split,
        load: Callable[[], Tools],
        say: Callable[[str], object],
    ) -> None:
        self._split = split
        self._load = load
        self._say = say
        self._wanted = not getattr(options, "no_lint", False)
        self._thread: threading.Thread | None = None
        self._found: list[Finding] = []
        self._script: Path | None = None
        self._over = threading.Event()

    def start(self) -> None:
        """Begin to read."""
        if self._wanted:
            thread = threading.Thread(target=self._read, name="ddpdoctor-foresight", daemon=True)
            thread.start()
            self._thread = thread

    def join(self, report: Report) -> Report:
        """Return the report of the job with what the source says of its findings.

        Where nothing was found, what lint warns of and no check of the job has looked for is said in one line.
        """
        from ddpdoctor.judge.source_lines import explain_mismatch, find_foreseen, join_source

        self._over.set()
        if self._thread is not None:
            self._thread.join(WAIT_S)
        if not self._found:
            return report
        if report.verdict.status == "healthy":
            self._tell_unseen(report)
        stacks: list[ExceptionRecord | CrashRecord] = [*report.evidence.exceptions, *report.evidence.crashes]
        for first in report.findings[:1]:
            better = explain_mismatch(first, stacks, self._found)
            if better is not first:
                verdict = replace(report.verdict, headline=better.message, code=better.code)
                others = join_source(report.findings[1:], self._found)
                return replace(report, findings=(better, *others), verdict=verdict)
        findings = join_source(report.findings, self._found)
        verdict = report.verdict
        unexplained = verdict.status == "problems" and verdict.code is None
        foreseen = find_foreseen(report.evidence.exceptions, self._found) if unexplained else None
        if foreseen is None:
            return replace(report, findings=findings)
        verdict = replace(verdict, headline=foreseen.message, code=foreseen.code)
        return replace(report, findings=(foreseen, *findings), verdict=verdict)

    def _tell_unseen(self, report: Report) -> None:
        known = {code for row in report.checks if row.status == "pass" for code in row.codes}
        known.update(each.code for each in report.findings)
        rest = [each for each in self._found if each.severity == "warning" and each.code not in known]
        if rest and self._script is not None and not _has_one_rank(self._split):
            self._say(describe(rest, self._script))

    def _read(self) -> None:
        try:
            meant = find_script(self._split)
            if meant is None:
                return
            self._script, root = script, _ = meant
            tools = self._load()
            found, failed = lint_program(script, root, tools.plugins)
            for words in failed:
                self._say(f"ddpdoctor: the script was not linted in full: {words}")
            self._found = [each for each in found if tools.selection.wants(each.code)]
            sure = [each for each in self._found if each.severity == "error"]
            if sure and not self._over.is_set() and not _has_one_rank(self._split):
                self._say(describe(sure, script))
        except Exception as problem:  # no reason for a run to end otherwise
            self._say(f"ddpdoctor: the script was not linted: {type(problem).__name__}: {problem}")


def lint_program(script: Path, root: Path, plugins: Plugins) -> tuple[list[Finding], list[str]]:
    """Read a script and what it imports from its directory.

    Returns:
        What `lint` finds there, without what comments hide, and the rules that failed.
    """
    from ddpdoctor.evidence import Evidence, Launch
    from ddpdoctor.judge.finding import QUESTION
    from ddpdoctor.judge.runner import run_checks
    from ddpdoctor.judge.suppression import Suppressor
    from ddpdoctor.source.gather import judge_scripts
    from ddpdoctor.source.own_imports import read_program
    from ddpdoctor.source.rules import FAILED

    sources = judge_scripts(read_program(script, root), plugins.checks.lint_rules)
    evidence = Evidence(launch=Launch("lint", nproc=0, world_size=0, backend="none"), sources=sources)
    names = {code: page.name for code, page in plugins.checks.pages.items()}
    review = Suppressor(sources, names).review
    _, found = run_checks(plugins.checks.checks_of("lint"), evidence, review=review)
    failed = dict.fromkeys(
        words for source in sources for words in source.skipped if f": {FAILED} (" in words
    )
    return [each for each in found if each.state == "active" and each.role != QUESTION], list(failed)


def describe(sure: list[Finding], script: Path) -> str:
    """Return the line that is said before the job has come so far."""
    first = sure[0]
    more = f" and {len(sure) - 1} more" if len(sure) > 1 else ""
    return (
        f"ddpdoctor: lint: {first.message.rstrip('.')} ({first.code}{more}; details: ddpdoctor lint "
        f"{shlex.quote(str(script))}; disable with --no-lint)"
    )


def find_script(split: Split) -> tuple[Path, Path] | None:
    """Return the file that is started and where Python looks for its modules; None where that cannot be told.

    Any word of a command may be none's name, and too long for one; `os.path.isfile` raises for none.
    """
    here = Path.cwd()
    if split.script is not None:
        path = Path(split.script)
        return (path, path.parent) if os.path.isfile(path) and path.suffix in (".py", ".pyw") else None
    if split.is_module and not split.is_command and split.target:
        parts = split.target[0].split(".")
        names = [here.joinpath(*parts).with_suffix(".py"), here.joinpath(*parts, "__main__.py")]
        return next(((path, here) for path in names if os.path.isfile(path)), None)
    if split.is_command:
        scripts = (Path(word) for word in split.target if word.endswith(".py"))
        return next(((path, path.parent) for path in scripts if os.path.isfile(path)), None)
    return None


def _has_one_rank(split: Split) -> bool:
    """Whether one rank on one node was asked for, with which nothing can wait."""
    from ddpdoctor.watch.commandline import read_torchrun

    given = read_torchrun(split.torchrun, os.environ)
    one = given.get("nproc-per-node", "1") == "1" and given.get("nnodes", "1") in ("1", "1:1")
    return one and not split.is_command
