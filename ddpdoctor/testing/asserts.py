"""Run one check, one rule or one gatherer as the program runs it, and say what is expected."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from ddpdoctor.evidence import (
    Evidence,
    Launch,
)
from ddpdoctor.evidence.gatherers import GathererRegistry, run_gatherers
from ddpdoctor.judge.catalogue import PAGE_SECTIONS
from ddpdoctor.judge.finding import Finding
from ddpdoctor.judge.registry import Check, Function, Registry
from ddpdoctor.judge.rules import LintRule
from ddpdoctor.judge.runner import CheckRow, run_checks
from ddpdoctor.report.build import build_report
from ddpdoctor.report.model import Report
from ddpdoctor.source.files.reading import parse_script
from ddpdoctor.source.gather import judge_scripts
from ddpdoctor.testing.worlds import make_node

STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
"""When made-up reports began, so that two of them are equal."""


def read_source(text: str, *rules: LintRule, name: str = "train.py") -> Evidence:
    """Return the evidence that `lint` has of one script, read with some rules.

    Args:
        text: the script.
        rules: declared with ``@lint_rule``.
        name: of the script.

    Raises:
        AssertionError: the script cannot be read, or a rule failed.
    """
    (file,) = judge_scripts([parse_script(text.encode(), name)], rules)
    if file.problem or file.skipped:
        raise AssertionError(f"{name} was not read: {file.problem or ', '.join(file.skipped)}")
    return Evidence(launch=Launch("lint", nproc=0, world_size=0, backend="none"), sources=(file,))


def collect_checks(function: Function, *, source: str = "ddpdoctor") -> tuple[Check, ...]:
    """Return the checks that a function declared with ``@check`` makes."""
    registry = Registry()
    registry.source = source
    registry.add(function)
    return registry.checks


def judge_one(
    function: Function, evidence: Evidence, *, id: str | None = None
) -> tuple[list[CheckRow], list[Finding]]:
    """Run one declared function as the program runs it: needs, limits and exceptions included.

    Args:
        function: declared with ``@check``.
        evidence: what it is to judge.
        id: only this row of a check with variants.
    """
    chosen = [each for each in collect_checks(function) if id is None or each.id == id]
    if not chosen:
        raise AssertionError(f"no check with id {id}")
    return run_checks(chosen, evidence)


def assert_finds(
    function: Function,
    evidence: Evidence,
    *,
    code: str | None = None,
    id: str | None = None,
    severity: str | None = None,
) -> Finding:
    """Assert that exactly one thing is found, that it can be shown, and return it.

    Raises:
        AssertionError: nothing or more is found, or the finding lacks a message or a fix.
    """
    rows, findings = judge_one(function, evidence, id=id)
    if len(findings) != 1:
        shown = [finding.message for finding in findings]
        raise AssertionError(f"found {len(findings)} things, not one: {shown or _states(rows)}")
    found = findings[0]
    if not found.message.strip():
        raise AssertionError("the finding has no message")
    if found.severity != "info" and not found.fix:
        raise AssertionError(f"the finding does not say what to do: {found.message}")
    if code is not None and found.code != code:
        raise AssertionError(f"found {found.code}, not {code}")
    if severity is not None and found.severity != severity:
        raise AssertionError(f"severity is {found.severity}, not {severity}")
    if Finding.from_dict(found.to_dict()) != found:
        raise AssertionError("the finding does not survive being saved; are its details plain data?")
    return found


def assert_passes(function: Function, evidence: Evidence, *, id: str | None = None) -> None:
    """Assert that every row of the check looked and found nothing.

    Raises:
        AssertionError: a row did not pass.
    """
    rows, findings = judge_one(function, evidence, id=id)
    if findings or any(row.status != "pass" for row in rows):
        raise AssertionError(f"did not pass: {_states(rows)}")


def assert_status(function: Function, evidence: Evidence, status: str, *, id: str | None = None) -> str:
    """Assert that every row ends with ``status`` (skipped, unknown, error …) and return the first reason.

    Raises:
        AssertionError: a row ends otherwise, or one that did not pass gives no reason.
    """
    rows, _ = judge_one(function, evidence, id=id)
    if any(row.status != status for row in rows):
        raise AssertionError(f"not {status}: {_states(rows)}")
    if status != "pass" and not all(row.reason for row in rows):
        raise AssertionError("a row gives no reason")
    return rows[0].reason or ""


def _states(rows: list[CheckRow]) -> str:
    return ", ".join(f"{row.id} {row.status}" + (f" ({row.reason})" if row.reason else "") for row in rows)


def assert_page(function: Function) -> None:
    """Assert that the page of every code of a check has a title and text under all headings.

    Raises:
        AssertionError: something is missing; it says what.
    """
    for page in {page.code: page for each in collect_checks(function) for page in each.pages}.values():
        sections = page.sections()
        missing = [heading for heading in PAGE_SECTIONS if not sections.get(heading)]
        if missing:
            raise AssertionError(f"the page of {page.code} lacks {', '.join(missing)}")
        if not page.title.strip() or not page.since.strip():
            raise AssertionError(f"{page.code} has no title or does not say since when")


def gather(register: Callable[[GathererRegistry], object], *, source: str, node: int = 0) -> dict[str, Any]:
    """Run the gatherers that ``register`` adds on a made-up node and return what lands in `Evidence.extra`.

    Raises:
        AssertionError: one of them raised, hung or returned what JSON cannot hold.
    """
    registry = GathererRegistry()
    registry.source = source
    register(registry)
    extra, failures = run_gatherers(registry, make_node(node))
    if failures:
        raise AssertionError("; ".join(f"{each.name}: {each.text}" for each in failures))
    return extra


def make_report(evidence: Evidence, *functions: Function, **changes: Any) -> Report:
    """Return the report of some checks over evidence, to try a renderer on.

    Args:
        evidence: what the checks judge.
        functions: declared with ``@check``.
        changes: arguments of `ddpdoctor.report.build.build_report`.
    """
    registry = Registry()
    registry.add(*functions)
    settings: dict[str, Any] = {
        "started_at": STARTED,
        "duration_s": 2.5,
        "invocation": ["ddpdoctor", "check"],
    }
    return build_report(evidence, registry=registry, **{**settings, **changes})
