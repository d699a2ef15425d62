"""Judgements that several checks build on: made once while checks are run."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import CannotLook, Finding, Registry, diagnosis, once, run_checks
from ddpdoctor.judge.once import keeping

MADE: list[Evidence] = []


@once
def judge(evidence: Evidence) -> list[int]:
    """Count how often it is called."""
    MADE.append(evidence)
    if evidence.extra:
        raise CannotLook("there is too much")
    return [len(MADE)]


@pytest.fixture(autouse=True)
def _forget() -> None:
    MADE.clear()


def test_judgement_is_made_once_for_each_evidence_while_checks_run() -> None:
    registry = Registry()
    for number in range(3):

        @diagnosis(f"toy.row{number}", codes=(), family="toys", needs=())
        def look(evidence: Evidence) -> Iterable[Finding]:
            judge(evidence)
            return ()

        registry.add(look)
    for _ in range(2):
        rows, _ = run_checks(registry.checks, Evidence())
        assert [row.status for row in rows] == ["pass"] * 3
    assert len(MADE) == 2


def test_outside_of_a_run_nothing_is_kept() -> None:
    evidence = Evidence()
    assert judge(evidence) is not judge(evidence)


def test_equal_evidence_is_other_evidence() -> None:
    with keeping():
        first, second = Evidence(), Evidence()
        assert judge(first) is judge(first)
        assert judge(second) is not judge(first)


def test_judgement_that_raises_is_made_again() -> None:
    with keeping():
        evidence = Evidence(extra={"x": {}})
        for _ in range(2):
            with pytest.raises(CannotLook):
                judge(evidence)
    assert len(MADE) == 2
