"""Rules of lines: what is a mistake where it stands, whatever the ranks do. One module for each subject."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.source.names import Files, Scope
from ddpdoctor.source.rules.wrapping import find_data_parallel

Rule = Callable[[Scope, Files], Iterable[SourceFact]]
"""From a module and all files that are read together to what the rule sees in that module."""
RULES: tuple[Rule, ...] = (find_data_parallel,)


def find_facts(module: Scope, files: Files) -> tuple[SourceFact, ...]:
    """Return what all rules see in one module, in order of the lines."""
    found = [fact for rule in RULES for fact in rule(module, files)]
    return tuple(sorted(found, key=lambda each: (each.place.cell or 0, each.place.line, each.place.column)))
