"""The check registry: what a check declares, and where all checks meet.

A check is a pure function from `Evidence` to findings, and one row of a report. Most look for one code (`check`);
one judgement that settles which of several codes it is declares them all (`diagnosis`). The pages of codes are in
`ddpdoctor.judge.catalogue`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.bundle import JOB_KINDS
from ddpdoctor.judge.catalogue import CodePage, find_page, read_docstring, require_severity
from ddpdoctor.judge.finding import Finding
from ddpdoctor.judge.rules import LintRule

OURS = "ddpdoctor"
"""The distribution of the built-in checks."""

Function = Callable[..., Iterable[Finding]]


class CannotLook(Exception):
    """Raised by a check when evidence that it needs is missing; its status becomes ``unknown``.

    Args:
        reason: what is missing.
        decides: whether all is well hangs on it, also where the check is not required.
    """

    def __init__(self, reason: str, *, decides: bool = False) -> None:
        super().__init__(reason)
        self.decides = decides


class NotApplicable(Exception):
    """Raised by a check where its question makes no sense; its status becomes ``skipped``."""


@dataclass(frozen=True, slots=True)
class Check:
    """One row of a report: a function over evidence, and what it declares."""

    id: str
    codes: tuple[str, ...]
    family: str
    """network, environment, backends, collectives, ddp, bandwidth, or a plugin's own."""
    needs: tuple[str, ...]
    """Evidence kinds; when one is absent the function is not called."""
    function: Callable[[Evidence], Iterable[Finding]]
    pages: tuple[CodePage, ...] = ()
    """Pages of its codes; before it is registered only those that it brings itself."""
    required: bool = True
    """Whether "healthy" may be said although this check could not look."""
    source: str = OURS
    """Distribution that it comes from."""
    commands: tuple[str, ...] = ()
    """Commands whose evidence it is about; empty where that follows from ``needs``."""
    package: str = ""
    """Where the pages of its codes are looked for."""

    def belongs_to(self, command: str) -> bool:
        """Whether it is a row of this command's reports.

        Where it does not say so itself: what needs evidence of a job belongs to the commands that watch one, what
        needs other evidence to ``check``, and what needs nothing to all.
        To ``lint`` belongs what needs source.
        """
        if command == "lint" and not self.commands:
            return "sources" in self.needs
        if self.commands or not self.needs:
            return not self.commands or command in self.commands
        return (command != "check") == any(kind in JOB_KINDS for kind in self.needs)


def check(
    code: str,
    *,
    family: str,
    needs: tuple[str, ...],
    id: str | None = None,
    variants: Mapping[str, object] | None = None,
    required: bool = True,
    commands: tuple[str, ...] = (),
    name: str | None = None,
    title: str = "",
    severity: str = "error",
    since: str = "",
    explains: tuple[str, ...] = (),
) -> Callable[[Function], Function]:
    """Declare a check that looks for one code.

    What there is to say of the code stands in its file of the catalogue. Without such a file a check brings it along:
    ``name``, ``title``, ``severity``, ``since`` and ``explains``, and its docstring is the page.

    Args:
        code: the code of the catalogue (``X-<dist>-001`` for a third party's).
        family: heading under which the report shows it.
        needs: evidence kinds without which it is not called.
        id: id of the row (``net.port.free``); what it establishes when it passes.
        variants: several rows from one function: id -> value passed as the keyword ``variant``.
        required: see `Check.required`.
        commands: see `Check.commands`.
        name: noun phrase in the failing state, e.g. ``port-in-use``.
        title: one line for lists.
        severity: error, warning or info; a finding may lower it.
        since: version of its distribution that brought it.
        explains: see `CodePage.explains`.

    Raises:
        ValueError: neither or both of ``id`` and ``variants``, or an unknown severity.
    """
    if (id is None) == (variants is None):
        raise ValueError(f"{code}: give either id or variants")
    require_severity(code, severity)

    def declare(function: Function) -> Function:
        pages: tuple[CodePage, ...] = ()
        if name is not None:
            text = read_docstring(function.__doc__)
            pages = (CodePage(code, name, title, severity, text, since, OURS, explains),)
        rows = {id: function} if id is not None else {}
        for row, value in (variants or {}).items():
            rows[row] = functools.partial(function, variant=value)
        checks = [
            Check(row, (code,), family, needs, call, pages, required, commands=commands,
                  package=function.__module__)
            for row, call in rows.items()
        ]  # fmt: skip
        setattr(function, _MARK, tuple(checks))
        return function

    return declare


def diagnosis(
    id: str,
    *,
    codes: tuple[str, ...],
    family: str,
    needs: tuple[str, ...],
    required: bool = True,
    commands: tuple[str, ...] = (),
) -> Callable[[Function], Function]:
    """Declare one judgement that settles which of several codes it is; each finding says its code.

    Args:
        id: id of the row; what it establishes when it passes.
        codes: all that it can find, each with a file in the catalogue, in the order in which reports show them.
        family: as for `check`.
        needs: as for `check`.
        required: as for `check`.
        commands: as for `check`.
    """

    def declare(function: Function) -> Function:
        row = Check(
            id, codes, family, needs, function, (), required, commands=commands, package=function.__module__
        )
        setattr(function, _MARK, (row,))
        return function

    return declare


_MARK = "__ddpdoctor_checks__"


class Registry:
    """All checks of this process; entry points fill it by ``register(registry)``."""

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}
        self._pages: dict[str, CodePage] = {}
        self._lint_rules: dict[str, LintRule] = {}
        self.source = OURS
        """Distribution that is registering now; set by the loader."""

    def add(self, *functions: Function) -> None:
        """Register functions declared with `check`.

        Raises:
            ValueError: a function is not declared, or an id is taken by another distribution's check.
        """
        for function in functions:
            declared: tuple[Check, ...] = getattr(function, _MARK, ())
            if not declared:
                raise ValueError(f"{function!r} was not declared with @check")
            for each in declared:
                self._add_one(each)

    def add_module(self, module: object) -> None:
        """Register every declared function and rule of a module, in order of definition."""
        for value in vars(module).values():
            if isinstance(value, LintRule):
                self.add_lint_rules(value)
            elif callable(value) and hasattr(value, _MARK):
                self.add(value)

    def add_lint_rules(self, *rules: LintRule) -> None:
        """Register rules declared with `ddpdoctor.judge.rules.lint_rule`.

        Raises:
            ValueError: another rule sees something of the same name.
        """
        for rule in rules:
            for fact in rule.facts:
                if self._lint_rules.setdefault(fact, rule) is not rule:
                    raise ValueError(f"{fact} is seen by another rule already: {self._lint_rules[fact].name}")

    @property
    def lint_rules(self) -> tuple[LintRule, ...]:
        """What `lint` looks for in source, in order of registration."""
        return tuple({id(rule): rule for rule in self._lint_rules.values()}.values())

    def _add_one(self, each: Check) -> None:
        if each.id in self._checks:
            raise ValueError(f"check id {each.id} is already registered by {self._checks[each.id].source}")
        pages = [self._choose_page(code, each) for code in each.codes]
        self._pages.update({page.code: page for page in pages})
        self._checks[each.id] = replace(each, pages=tuple(pages), source=self.source)

    def _choose_page(self, code: str, each: Check) -> CodePage:
        """Return the page of a code: the one that is known, the check's own, or that of its package's catalogue."""
        own = next((page for page in each.pages if page.code == code), None)
        known = self._pages.get(code)
        if known is not None and known.source != self.source:
            raise ValueError(f"code {code} belongs to {known.source}")
        if known is not None and (known.text or own is None or not own.text):
            return known
        page = own or find_page(code, each.package)
        if page is None:
            where = f"no catalogue/{code}.md in {each.package.partition('.')[0]}"
            raise ValueError(f"code {code} has no page: {where}, and {each.id} does not give its name")
        return replace(page, source=self.source)

    @property
    def checks(self) -> tuple[Check, ...]:
        """All checks in order of registration."""
        return tuple(self._checks.values())

    def checks_of(self, command: str) -> tuple[Check, ...]:
        """Return the checks that are rows of a command's reports, in order of registration."""
        return tuple(each for each in self._checks.values() if each.belongs_to(command))

    @property
    def pages(self) -> dict[str, CodePage]:
        """Code -> page, in order of registration."""
        return dict(self._pages)

    def find_page(self, code_or_name: str) -> CodePage | None:
        """Return the page of a code or of a name, whatever the case; None when there is none."""
        wanted = code_or_name.lower()
        return next((p for p in self.pages.values() if wanted in (p.code.lower(), p.name.lower())), None)
