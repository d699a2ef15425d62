"""Loading checks, gatherers and renderers from the entry points of installed distributions.

A distribution that cannot be imported, raises or hangs becomes a `PluginProblem` and harms nothing else. What comes
with ddpdoctor itself is waited for however long it takes: on a busy machine slow is not absent.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddpdoctor.errors import DoctorError
from ddpdoctor.evidence.gatherers import GathererRegistry
from ddpdoctor.judge.registry import OURS, Function, Registry
from ddpdoctor.judge.runner import CheckRow
from ddpdoctor.report import builtin
from ddpdoctor.report.registry import RendererRegistry

CHECKS, GATHERERS, RENDERERS = "ddpdoctor.checks", "ddpdoctor.gatherers", "ddpdoctor.renderers"
GROUPS = (CHECKS, GATHERERS, RENDERERS)
LOAD_LIMIT_S = 10.0
"""Seconds for an entry point of a third party. One that imports torch takes 2 s here; what is late is left out and
named."""


@dataclass(frozen=True, slots=True)
class PluginProblem:
    """A distribution whose entry point could not be used."""

    distribution: str
    group: str
    text: str

    def to_row(self) -> CheckRow:
        """Return the row by which a report shows it; only one of ours costs the verdict."""
        kind = self.group.rpartition(".")[2]
        return CheckRow(
            id=f"plugin.{self.distribution}.{kind}",
            codes=(),
            family="plugins",
            status="error",
            reason=f"{self.distribution}: {self.text}",
            duration_s=0.0,
            source=self.distribution,
            required=self.distribution == OURS,
        )


@dataclass(slots=True)
class Plugins:
    """Everything that is installed."""

    checks: Registry = field(default_factory=Registry)
    gatherers: GathererRegistry = field(default_factory=GathererRegistry)
    renderers: RendererRegistry = field(default_factory=RendererRegistry)
    problems: tuple[PluginProblem, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry point: whose it is and how to get its ``register``."""

    distribution: str
    group: str
    name: str
    load: Callable[[], Callable[[Any], object]]


class _StagedChecks(Registry):
    """Takes a plugin's checks apart, so that one that fails half-way leaves nothing behind."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.functions: list[Function] = []

    def add(self, *functions: Function) -> None:
        super().add(*functions)
        self.functions.extend(functions)


class _StagedGatherers(GathererRegistry):
    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source


class _StagedRenderers(RendererRegistry):
    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source


def load_plugins(
    entries: Iterable[Entry] | None = None,
    *,
    groups: Sequence[str] = GROUPS,
    limit_s: float = LOAD_LIMIT_S,
) -> Plugins:
    """Load everything that is installed, the built-ins first.

    Args:
        entries: entry points to load; None finds those of the installed distributions.
        groups: groups to look into.
        limit_s: seconds for each entry point of a third party.

    Raises:
        DoctorError: there is not a single check.
    """
    plugins = Plugins()
    builtin.register(plugins.renderers)
    problems: list[PluginProblem] = []
    for entry in find_entries(groups) if entries is None else entries:
        problem = _load_one(entry, plugins, limit_s)
        if problem is not None:
            problems.append(PluginProblem(entry.distribution, entry.group, problem))
    if not plugins.checks.checks:
        context = f"{problems[0].distribution}: {problems[0].text}" if problems else None
        raise DoctorError("this installation has no checks", context=context, hint="pip install ddpdoctor")
    plugins.problems = tuple(problems)
    return plugins


def find_entries(groups: Sequence[str] = GROUPS) -> list[Entry]:
    """Return the entry points of all installed distributions: ours first, then by name; each once."""
    found: dict[tuple[str, str, str], Entry] = {}
    for group in groups:
        for point in importlib.metadata.entry_points(group=group):
            name = point.dist.name if point.dist is not None else point.value.partition(".")[0]
            if name == OURS and group == RENDERERS:
                continue  # the engine's own formats need no entry point to be found
            found.setdefault((group, name, point.name), Entry(name, group, point.name, point.load))
    return sorted(
        found.values(), key=lambda e: (GROUPS.index(e.group), e.distribution != OURS, e.distribution)
    )


def _load_one(entry: Entry, plugins: Plugins, limit_s: float) -> str | None:
    """Load one entry point in a thread; return what went wrong, or None."""
    staged = _STAGED[entry.group](entry.distribution)
    outcome: list[str | None] = []

    def call() -> None:
        try:
            entry.load()(staged)
            outcome.append(None)
        except BaseException as problem:  # SystemExit of anyone's module must not end the command
            outcome.append(f"{type(problem).__name__}: {problem}")

    thread = threading.Thread(target=call, name=f"loading {entry.distribution}", daemon=True)
    with contextlib.redirect_stdout(sys.stderr):  # stdout is the report's, and may be JSON
        thread.start()
        thread.join(None if entry.distribution == OURS else limit_s)
    problem = outcome[0] if outcome else f"{entry.name} was not loaded within {limit_s:g} s"
    if problem is None or (outcome and entry.distribution == OURS):  # of ours, half is better than nothing
        try:
            _merge(staged, plugins)
        except ValueError as conflict:
            return str(conflict)
    return problem


_STAGED: dict[str, Callable[[str], Any]] = {
    CHECKS: _StagedChecks,
    GATHERERS: _StagedGatherers,
    RENDERERS: _StagedRenderers,
}


def _merge(staged: _StagedChecks | _StagedGatherers | _StagedRenderers, plugins: Plugins) -> None:
    """Take over what a plugin registered.

    Raises:
        ValueError: an id, name, code or fact is taken, or a code does not carry its distribution.
    """
    if isinstance(staged, _StagedChecks):
        _require_own_codes(staged.source, [*staged.pages])
        plugins.checks.source = staged.source
        plugins.checks.add(*staged.functions)
        plugins.checks.add_lint_rules(*staged.lint_rules)
    elif isinstance(staged, _StagedGatherers):
        plugins.gatherers.source = staged.source
        for gatherer in staged.gatherers:
            plugins.gatherers.add(gatherer.name, gatherer.look)
    else:
        plugins.renderers.source = staged.source
        for name in staged.names:
            renderer = staged.find(name)
            if renderer is not None:
                plugins.renderers.add(renderer)


def _require_own_codes(distribution: str, codes: Sequence[str]) -> None:
    if distribution == OURS:
        return
    for code in codes:
        if not re.fullmatch(rf"X-{re.escape(distribution)}-\d{{3}}", code):
            raise ValueError(f"code {code} must be of the form X-{distribution}-001")
