"""Applying the rules of `lint`: what each sees in files that are read together, within what that may cost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge.rules import LintRule
from ddpdoctor.source.files.budget import OverBudgetError, describe_cut, limit_steps
from ddpdoctor.source.files.reading import TOO_DEEP, Script
from ddpdoctor.source.launching.launch_files import LaunchFile
from ddpdoctor.source.resolve.kinds import kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.traces import Trace, trace_classes, trace_programs, trace_setups

Row = TypeVar("Row")
FAILED = "failed"
"""Said of a rule in whose code something was raised."""
MOST_WORDS = 120
"""Characters of an error's own text: that of a missing key may be a whole file."""


class FactFinder:
    """Finds what rules see.

    Args:
        files: all that are read together.
        rules: which to apply.
    """

    def __init__(self, files: Files, rules: Sequence[LintRule]) -> None:
        self._files = files
        self._of_modules = [each for each in rules if each.reads == "module"]
        self._of_programs = [each for each in rules if each.reads == "program"]
        self._of_files = [each for each in rules if each.reads == "files"]

    def prepare(self) -> None:
        """Find what most rules need: once, before processes are forked, and within the budget of none of them."""
        with contextlib.suppress(RecursionError):  # whoever needs it is stopped by it, and says so
            kinds_of(self._files).list_callers()

    def find_together(self, budget: float, cut: list[str]) -> tuple[SourceFact, ...]:
        """Return what the rules of all files see.

        Args:
            budget: steps that each rule may take.
            cut: takes words on the rules that were stopped, or failed.
        """
        found: list[SourceFact] = []
        for rule in self._of_files:
            try:
                found += _limit(_run(rule, cut, self._files), rule.name, budget, cut)
            except RecursionError:  # one file must not cost the others
                cut.append(f"{rule.name}: {TOO_DEEP}")
        return tuple(found)

    def find(self, module: Scope, budget: float, cut: list[str]) -> tuple[SourceFact, ...]:
        """Return what the rules of modules and programs see in one module, in order of the lines.

        Args:
            module: the module.
            budget: steps that each rule may take.
            cut: takes words on the rules that were stopped, or failed.
        """
        found: list[SourceFact] = []
        for rule in self._of_modules:
            found += _limit(_run(rule, cut, module, self._files), rule.name, budget, cut)
        traces = _limit(self._trace(module), "programs", budget, cut)
        for rule in self._of_programs:
            found += _limit(self._judge_programs(rule, traces, cut), rule.name, budget, cut)
        return order_facts(found)

    def _trace(self, module: Scope) -> Iterator[Trace]:
        for trace in (trace_programs, trace_setups, trace_classes):
            yield from trace(module, self._files)

    def _judge_programs(
        self, rule: LintRule, traces: Sequence[Trace], cut: list[str]
    ) -> Iterator[SourceFact]:
        """Yield what a rule of programs sees, of each program each line once."""
        for trace in traces:
            if (trace.setup and not rule.setups) or (trace.owner is not None and not rule.classes):
                continue
            known = set()
            for fact in _run(rule, cut, trace, self._files):
                if (fact.rule, fact.place) not in known:
                    known.add((fact.rule, fact.place))
                    yield fact


def order_facts(facts: Iterable[SourceFact]) -> tuple[SourceFact, ...]:
    """Return the facts of one file in order of their lines."""
    return tuple(sorted(facts, key=lambda each: (each.place.cell or 0, each.place.line, each.place.column)))


def find_in_launch(
    launch: LaunchFile, scripts: Sequence[Script], rules: Sequence[LintRule], cut: list[str]
) -> tuple[SourceFact, ...]:
    """Return what the rules of files see that start jobs, in order of the lines.

    Args:
        launch: the file.
        scripts: all that are read together.
        rules: all of them.
        cut: takes words on the rules that failed.
    """
    found = [
        fact
        for rule in rules
        if rule.reads == "launch" and not launch.problem
        for fact in _run(rule, cut, launch, scripts)
    ]
    return tuple(sorted(found, key=lambda each: (each.place.line, each.place.column)))


def _run(rule: LintRule, cut: list[str], *given: object) -> Iterator[SourceFact]:
    """Yield what a rule sees, until something is raised in it: that costs neither the file nor the other rules."""
    try:
        for fact in rule.detect(*given):
            if fact.rule not in rule.facts:
                raise ValueError(f"{fact.rule} is none of {', '.join(rule.facts)}")
            yield fact
    except (OverBudgetError, RecursionError):
        raise
    except Exception as problem:
        words = describe_failure(rule.name, problem)
        if words not in cut:
            cut.append(words)


def describe_failure(name: str, problem: Exception) -> str:
    """Return the words on a part of `lint` in whose code something was raised."""
    return f"{name}: {FAILED} ({type(problem).__name__}: {str(problem)[:MOST_WORDS]})"


def _limit(rows: Iterable[Row], name: str, budget: float, cut: list[str]) -> list[Row]:
    """Return what is found before a budget is spent."""
    found: list[Row] = []
    try:
        with limit_steps(budget):
            found.extend(rows)
    except OverBudgetError:
        cut.append(describe_cut(name, budget))
    return found
