"""The check registry: what a check declares, and where all checks meet.

A check is a pure function from `Evidence` to findings. Its docstring is the page of its code, the text that
``ddpdoctor explain CODE`` prints; `PAGE_SECTIONS` are the headings that it must have.
"""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.bundle import JOB_KINDS
from ddpdoctor.judge.finding import SEVERITIES, Finding

PAGE_SECTIONS = (
    "What it looks for",
    "Why it matters",
    "How it decides",
    "Known false alarms",
    "Fix",
    "References",
)

PAGE_EXAMPLES = ("Wrong", "Right")
"""Headings of programs, behind the fix, on the pages of codes that are found in the source."""

OURS = "ddpdoctor"
"""The distribution of the built-in checks."""

Function = Callable[..., Iterable[Finding]]


class CannotLook(Exception):
    """Raised by a check when evidence that it needs is missing; its status becomes ``unknown``."""


class NotApplicable(Exception):
    """Raised by a check where its question makes no sense; its status becomes ``skipped``."""


@dataclass(frozen=True, slots=True)
class CodePage:
    """One code of the catalogue with its page."""

    code: str
    name: str
    title: str
    severity: str
    text: str
    since: str
    source: str
    examples: tuple[str, str] | None = None
    """A short program in which `lint` finds it, and the same one corrected."""

    def sections(self) -> dict[str, str]:
        """Return heading -> text, in order; the text before the first heading is under ``""``."""
        found: dict[str, list[str]] = {"": []}
        heading = ""
        for line in self.text.splitlines():
            if line.rstrip(":") in PAGE_SECTIONS and not line.startswith(" "):
                heading = line.rstrip(":")
                found[heading] = []
            else:
                found[heading].append(line)
        sections: dict[str, str] = {}
        for name, lines in found.items():
            sections[name] = textwrap.dedent("\n".join(lines)).strip()
            if name == "Fix":
                for title, code in zip(PAGE_EXAMPLES, self.examples or (), strict=False):
                    sections[title] = textwrap.indent(code.rstrip(), "    ")
        return sections


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
    severity: str
    pages: tuple[CodePage, ...]
    required: bool = True
    """Whether "healthy" may be said although this check could not look."""
    explains: tuple[str, ...] = ()
    """Codes that become consequences when this check finds something."""
    source: str = OURS
    """Distribution that it comes from."""
    commands: tuple[str, ...] = ()
    """Commands whose evidence it is about; empty where that follows from ``needs``."""

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
    name: str,
    title: str,
    severity: str,
    family: str,
    needs: tuple[str, ...],
    since: str,
    id: str | None = None,
    variants: Mapping[str, object] | None = None,
    required: bool = True,
    explains: tuple[str, ...] = (),
    commands: tuple[str, ...] = (),
) -> Callable[[Function], Function]:
    """Declare a check; the decorated function's docstring becomes the page of ``code``.

    Args:
        code: the code of the catalogue (``X-<dist>-001`` for a third party's).
        name: noun phrase in the failing state, e.g. ``port-in-use``.
        title: one line for lists.
        severity: error, warning or info; a finding may lower it.
        family: heading under which the report shows it.
        needs: evidence kinds without which it is not called.
        since: version of its distribution that brought it.
        id: id of the row (``net.port.free``); what it establishes when it passes.
        variants: several rows from one function: id -> value passed as the keyword ``variant``.
        required: see `Check.required`.
        explains: see `Check.explains`.
        commands: see `Check.commands`.

    Raises:
        ValueError: neither or both of ``id`` and ``variants``, or an unknown severity.
    """
    if (id is None) == (variants is None):
        raise ValueError(f"{code}: give either id or variants")
    if severity not in SEVERITIES:
        raise ValueError(f"{code}: unknown severity {severity!r}")

    def declare(function: Function) -> Function:
        page = CodePage(
            code, name, title, severity, inspect.cleandoc(function.__doc__ or ""), since, "ddpdoctor"
        )
        rows = {id: function} if id is not None else {}
        for row, value in (variants or {}).items():
            rows[row] = functools.partial(function, variant=value)
        checks = [
            Check(row, (code,), family, needs, call, severity, (page,), required, explains, commands=commands)
            for row, call in rows.items()
        ]
        setattr(function, _MARK, tuple(checks))
        return function

    return declare


def check_also(
    known: Function,
    *,
    id: str,
    family: str,
    needs: tuple[str, ...],
    required: bool = True,
    explains: tuple[str, ...] = (),
    commands: tuple[str, ...] = (),
) -> Callable[[Function], Function]:
    """Declare another row for the code of a function that `check` declared, seen in other evidence.

    Code, name, title, severity and page are those of ``known``; the other arguments are as for `check`.

    Raises:
        ValueError: ``known`` was not declared with `check`.
    """
    declared: tuple[Check, ...] = getattr(known, _MARK, ())
    if not declared:
        raise ValueError(f"{known!r} was not declared with @check")
    first = declared[0]

    def declare(function: Function) -> Function:
        row = Check(
            id, first.codes, family, needs, function, first.severity, first.pages, required, explains,
            commands=commands,
        )  # fmt: skip
        setattr(function, _MARK, (row,))
        return function

    return declare


_MARK = "__ddpdoctor_checks__"


class Registry:
    """All checks of this process; entry points fill it by ``register(registry)``."""

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}
        self._pages: dict[str, CodePage] = {}
        self.examples: dict[str, tuple[str, str]] = {}
        """Code -> the wrong and the right program of its page."""
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
        """Register every declared function of a module, in order of definition."""
        for value in vars(module).values():
            if callable(value) and hasattr(value, _MARK):
                self.add(value)

    def add_examples(self, examples: Mapping[str, tuple[str, str]]) -> None:
        """Register programs for the pages of codes: a wrong and a right one each."""
        self.examples.update(examples)

    def _add_one(self, each: Check) -> None:
        if each.id in self._checks:
            raise ValueError(f"check id {each.id} is already registered by {self._checks[each.id].source}")
        pages = tuple(replace(page, source=self.source) for page in each.pages)
        for page in pages:
            known = self._pages.get(page.code)
            if known is not None and known.source != self.source:
                raise ValueError(f"code {page.code} belongs to {known.source}")
            if known is None or (not known.text and page.text):
                self._pages[page.code] = page
        self._checks[each.id] = replace(each, pages=pages, source=self.source)

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
        shown = self.examples
        return {
            code: replace(page, examples=shown[code]) if code in shown else page
            for code, page in self._pages.items()
        }

    def find_page(self, code_or_name: str) -> CodePage | None:
        """Return the page of a code or of a name, whatever the case; None when there is none."""
        wanted = code_or_name.lower()
        return next((p for p in self.pages.values() if wanted in (p.code.lower(), p.name.lower())), None)
