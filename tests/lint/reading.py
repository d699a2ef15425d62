"""What tests of rules share."""

from __future__ import annotations

from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.source.gather import judge_scripts
from ddpdoctor.source.reading import parse_script


def facts_in(source: str) -> tuple[SourceFact, ...]:
    """Return what the rules read in a script."""
    (row,) = judge_scripts([parse_script(source.encode(), "train.py")])
    assert row.problem is None, row.problem
    return row.facts


def rules_in(source: str) -> list[tuple[str, int]]:
    """Return which rules see something in a script, and at which lines."""
    return [(fact.rule, fact.place.line) for fact in facts_in(source)]
