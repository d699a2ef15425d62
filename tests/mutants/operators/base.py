"""What an operator is, and where they are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.mutants.syntax import Edit, File

Finder = Callable[[File], Iterator[Edit]]


@dataclass(frozen=True, slots=True)
class Operator:
    """A mistake that people make, put into correct code."""

    name: str
    codes: tuple[str, ...]
    """Of the catalogue: any of these says what is wrong."""
    severity: str
    """That a finding should have at least."""
    words: str
    """What it does, for the table."""
    find: Finder
    """Yields the places in a file where it can be done."""
    undecided: str = ""
    """Why the files given never decide that it is wrong: such mutants are shown and do not count."""


OPERATORS: dict[str, Operator] = {}


def operator(
    name: str, *codes: str, words: str, severity: str = "warning", undecided: str = ""
) -> Callable[[Finder], Finder]:
    """Keep a function as an operator."""

    def keep(find: Finder) -> Finder:
        OPERATORS[name] = Operator(name, codes, severity, words, find, undecided)
        return find

    return keep
