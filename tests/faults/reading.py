"""The cases as ``lint`` reads them, without running anything: what it finds of what can be read, and its alarms."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import junitparser

import ddpdoctor_checks
from ddpdoctor.evidence import Evidence, Launch
from ddpdoctor.judge import Finding, Registry
from ddpdoctor.judge.runner import run_checks
from ddpdoctor.source.gather import read_sources
from tests.faults.truth import Truth

ROOT = Path(__file__).resolve().parent.parent.parent
HEADING = "## As read by `lint`"
WORDS = """\
The same scripts, read and not run. *Could be read*: broken cases whose code `lint` looks for; many of them break in a way that is not visible in the source (a
slow rank, data that differ, a full disk), so this is a floor, not a goal. A finding is right where its code is that of the truth, or is on a marked line and of
its family (a call that only some ranks make is COL002 as read, and COL002, COL003 or COL008 as seen, by what the others do). An alarm is any other warning or error.

*Programs*: those of `tests/lint` and of the pages of the codes, wrong and right ones of each code in different styles. A wrong one is found where its finding is at
the marked line; a right one passes where that rule, and in most tests every other, reports nothing (`pytest tests/lint -m wrong`, `-m right`). They were written
with the rules: what these find elsewhere is the table's."""


@dataclass(frozen=True, slots=True)
class Programs:
    """How the programs were judged that are written for the rules."""

    wrong: int
    found: int
    """Wrong ones with their finding at its line."""
    right: int
    silent: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What `lint` says of one case."""

    truth: Truth
    right: tuple[str, ...]
    """Codes of findings that fit the truth."""
    alarms: tuple[str, ...]
    """Codes of warnings and errors that do not."""
    readable: bool
    """Whether `lint` looks for the case's code at all."""


def read_cases(truths: Sequence[Truth]) -> list[Reading]:
    """Lint each case as a program of its own."""
    registry = Registry()
    ddpdoctor_checks.register(registry)
    checks = registry.checks_of("lint")
    known = {code for each in checks for code in each.codes}
    readings = []
    for truth in truths:
        sources = read_sources([str(truth.folder)], registry.lint_rules)
        evidence = Evidence(launch=Launch("lint", nproc=0, world_size=0, backend="none"), sources=sources)
        _, findings = run_checks(checks, evidence)
        readings.append(judge_reading(truth, findings, known))
    return readings


def judge_reading(truth: Truth, findings: Sequence[Finding], known: set[str]) -> Reading:
    """Compare what was read with the truth.

    Args:
        truth: of the case.
        findings: of `lint`.
        known: codes that `lint` looks for.
    """
    right, alarms = [], []
    for each in findings:
        if each.severity == "info":
            continue
        lines = {place.line for place in each.where}
        marked = each.code[:3] == truth.code[:3] and any(line in lines for _, line in truth.lines)
        if not truth.is_healthy and (each.code in truth.codes or marked):
            right.append(each.code)
        elif each.code not in (*truth.beside, *truth.also):
            alarms.append(each.code)
    readable = not truth.is_healthy and bool(known & set(truth.codes))
    return Reading(truth, tuple(right), tuple(alarms), readable)


def try_programs() -> Programs:
    """Run the tests of the programs that are marked as wrong or right.

    Raises:
        RuntimeError: they could not be run.
    """
    counts = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("wrong", "right"):
            told = Path(folder, f"{kind}.xml")
            command = [
                sys.executable,
                "-m",
                "pytest",
                "tests/lint",
                "-q",
                "--no-cov",
                "-m",
                kind,
                f"--junitxml={told}",
            ]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if not told.exists():
                raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}")
            results = junitparser.JUnitXml.fromfile(str(told))
            counts += [results.tests, results.tests - results.failures - results.errors]
    return Programs(*counts)


def make_section(readings: Sequence[Reading], programs: Programs) -> str:
    """Return the part of the page on accuracy."""
    healthy = [each for each in readings if each.truth.is_healthy]
    readable = [each for each in readings if each.readable]
    found = [each for each in readings if each.right]
    alarms = [each for each in readings if each.alarms]
    told = len(found) + sum(len(each.alarms) for each in readings)
    rows = [
        f"found {sum(bool(each.right) for each in readable)} of {len(readable)} broken jobs that could be read",
        f"right findings {len(found)} of {told} (precision)",
        f"alarms on {sum(bool(each.alarms) for each in healthy)} of {len(healthy)} healthy jobs",
        f"programs: found {programs.found} of {programs.wrong} wrong ones (recall), silent on {programs.silent} of "
        f"{programs.right} right ones; {programs.found} of {programs.found + programs.right - programs.silent} of what "
        "it said was right (precision)",
    ]
    parts = [HEADING, WORDS, "\n".join(f"* {row}" for row in rows)]
    parts.append("Found: " + ", ".join(f"`{each.truth.name}` ({each.right[0]})" for each in found) + ".")
    if alarms:
        named = (f"`{each.truth.name}` ({', '.join(dict.fromkeys(each.alarms))})" for each in alarms)
        parts.append("Alarms: " + ", ".join(named) + ".")
    return "\n\n".join(parts) + "\n"
