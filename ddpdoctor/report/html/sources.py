"""The lines of source that a finding names, with those around them, numbered: guard and call in one frame."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddpdoctor.judge.finding import Where
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.registry import ReadSource
from ddpdoctor.report.words import format_ranks

AROUND = 2
"""Lines before and after one that is named: five lines in all."""
JOINED = 2
"""So many lines between two parts are shown rather than left out."""
FILES_SHOWN, LINES_SHOWN = 6, 60
ROLES = {
    "culprit": "root cause",
    "condition": "condition",
    "caller": "called from here",
    "victim": "blocked here",
    "noticed": "detected here",
}


@dataclass(frozen=True, slots=True)
class LineView:
    """One line of a frame."""

    number: int
    text: str
    tone: str = ""
    """culprit, condition, caller, victim or noticed where a finding names it."""
    note: str = ""
    gap: bool = False
    """Lines before it are not shown."""


@dataclass(frozen=True, slots=True)
class SourceView:
    """The lines of one file."""

    title: str
    """File, with the cell of a notebook and the host."""
    lines: tuple[LineView, ...]


def view_sources(
    places: Sequence[Where], size: int, read: ReadSource | None, caps: Caps
) -> tuple[SourceView, ...]:
    """Return a frame for each file, in the order of the places.

    Args:
        places: of a finding.
        size: ranks of the job.
        read: gives the lines of a file of the user's own; None, or where it gives none or others than those that
            the finding quotes, only the quoted lines are shown.
        caps: gets what is not shown.
    """
    files: dict[tuple[str, int | None, str | None], list[Where]] = {}
    for place in places:
        files.setdefault((place.file, place.cell, place.host), []).append(place)
    listed = caps.take(list(files.items()), FILES_SHOWN, "files of a finding")
    return tuple(_view(key, named, size, read, caps) for key, named in listed)


def _view(
    key: tuple[str, int | None, str | None],
    places: Sequence[Where],
    size: int,
    read: ReadSource | None,
    caps: Caps,
) -> SourceView:
    file, cell, host = key
    named: dict[int, list[Where]] = {}
    for place in places:
        named.setdefault(place.line, []).append(place)
    lines = read(file) if read is not None and cell is None else None
    if lines is None or not _agrees(lines, named):
        lines = None
    shown = sorted(named) if lines is None else _spread(named, lines)
    found = []
    before = 0
    for number in caps.take(shown, LINES_SHOWN, f"lines of {file}"):
        own = named.get(number, ())
        if lines is not None:
            text = lines[number - 1]
        else:
            text = next((" " * (each.indent or 0) + each.source for each in own if each.source), "")
        tone = own[0].role if own else ""
        gap = bool(before) and number > before + 1
        found.append(LineView(number, text, tone, _describe(own, size), gap))
        before = number
    words = [file if cell is None else f"{file}, cell {cell}", f"on {host}" if host else ""]
    return SourceView(" ".join(word for word in words if word), tuple(found))


def _agrees(lines: Sequence[str], named: dict[int, list[Where]]) -> bool:
    """Whether a file still has the lines that a finding quotes: it may have been changed since."""
    quoted = [place for places in named.values() for place in places if place.source]
    return bool(quoted) and all(
        0 < place.line <= len(lines) and _squeeze(lines[place.line - 1]) == _squeeze(place.source or "")
        for place in quoted
    )


def _squeeze(text: str) -> str:
    return " ".join(text.split())


def _spread(named: Mapping[int, Sequence[Where]], lines: Sequence[str]) -> list[int]:
    """Return the numbers with those around them; short gaps are closed, and empty lines at the edges dropped.

    What only called the others stands alone.
    """
    wanted = set()
    for number, places in named.items():
        around = 0 if all(place.role == "caller" for place in places) else AROUND
        wanted |= {n for n in range(number - around, number + around + 1) if 0 < n <= len(lines)}
    for number in (*sorted(wanted), *sorted(wanted, reverse=True)):
        at_edge = number - 1 not in wanted or number + 1 not in wanted
        if at_edge and number not in named and not lines[number - 1].strip():
            wanted.discard(number)
    ordered = sorted(wanted)
    for one, following in itertools.pairwise(ordered):
        if 1 < following - one <= JOINED + 1:
            wanted.update(range(one, following))
    return sorted(wanted)


def _describe(places: Sequence[Where], size: int) -> str:
    """Return what is said beside a line: role, ranks and function, equal ones once."""
    parts: list[str] = []
    for place in places:
        ranks = f" · {format_ranks(place.ranks, size)}" if place.ranks else ""
        named = place.role != "condition" and place.function not in (
            None,
            "<module>",
        )  # a condition's is its kind
        inside = f", in {place.function}" if named else ""
        words = f"{ROLES.get(place.role, place.role)}{ranks}{inside}"
        if words not in parts:
            parts.append(words)
    return "; ".join(parts)
