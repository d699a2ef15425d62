"""What was read in source files: uneven calls of collectives, and lines that are a mistake by themselves."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """A place in a file that was read."""

    file: str
    line: int
    """Counted from 1, in the cell where there is one."""
    column: int
    """Counted from 1."""
    text: str
    """The line, stripped."""
    function: str | None = None
    cell: int | None = None
    """Number of a notebook's cell, counted from 1."""
    indent: int = 0
    """Columns of white space before the text."""


@dataclass(frozen=True, slots=True)
class UnevenCall:
    """A collective that some ranks reach and others do not."""

    operation: str
    """Name of the function or method, e.g. ``all_reduce``."""
    call: SourcePlace
    """Where it is made, or where the function that makes it is called."""
    guard: SourcePlace
    """What decides whether a rank comes there."""
    kind: str
    """if, else, return, break, continue, exit, while, for, decorator, except or skip (an error that is passed over)."""
    test: str
    """Source of the test."""
    origin: str
    """What differs between ranks: rank, host, clock, loss (of the own batch), random, error (that one rank meets), or
    helper for what is by its name true on rank 0 only."""
    traced: bool = True
    """Whether the test was followed to its source; false where only its name says that it is the rank."""
    certain: bool = True
    """Whether each run comes there; false where other conditions decide as well."""
    inner: tuple[SourcePlace, ...] = ()
    """The collective itself, where ``call`` is the call of a function that makes it."""
    more: tuple[SourcePlace, ...] = ()
    """Further collectives below the same guard."""


@dataclass(frozen=True, slots=True)
class RelatedPlace:
    """A place that belongs to a mistake beside the line itself."""

    role: str
    """condition, caller or noticed, as in the ``where`` of a finding."""
    place: SourcePlace


@dataclass(frozen=True, slots=True)
class SourceFact:
    """What a rule of `lint` has read; whether and how it is told is for the checks to say."""

    rule: str
    """What is seen, e.g. ``data-parallel``."""
    place: SourcePlace
    """The line that has to change."""
    related: tuple[RelatedPlace, ...] = ()
    details: dict[str, str] = field(default_factory=dict)
    """What the words of the finding need, by name: variables, classes, values, and which of several ways it is."""
    traced: bool = True
    """Whether what is meant was followed to its source; false where only names say what something is."""
    certain: bool = True
    """Whether each run comes there; false where other conditions decide as well."""


@dataclass(frozen=True, slots=True)
class IgnoreComment:
    """A comment ``# ddpdoctor: ignore[CODE] reason``, with the lines for which it is meant."""

    place: SourcePlace
    codes: tuple[str, ...]
    """Codes as written, which may be none or unknown ones."""
    reason: str
    """Empty where none is given."""
    first: int
    """First line of the statement at which it stands, in the cell where there is one."""
    last: int


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file that was given to ``lint``."""

    name: str
    problem: str | None = None
    """Why it could not be read; None where it was."""
    uneven: tuple[UnevenCall, ...] = ()
    facts: tuple[SourceFact, ...] = ()
    ignores: tuple[IgnoreComment, ...] = ()
    skipped: tuple[str, ...] = ()
    """Parts that were not read, each with the reason: ``cell 3: line 1: invalid syntax``."""
    unrelated: bool = False
    """Whether it mentions no distributed library, so nothing more of it was read."""
