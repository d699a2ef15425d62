from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.evidence import RankSet
from ddpdoctor.judge import Finding, Where
from ddpdoctor.judge.fingerprint import fingerprint

CALL = Where(RankSet([1]), "culprit", "train.py", 88, "step", "dist.all_reduce(loss)")
TEST = Where(RankSet([1]), "condition", "train.py", 86, "step", "if rank == 0:")
FINDING = Finding("Rank 1 waits at train.py:88.", code="COL002", where=(CALL, TEST), ranks=RankSet([1]))


def moved(finding: Finding, by: int) -> Finding:
    return replace(finding, where=tuple(replace(each, line=each.line + by) for each in finding.where))


@pytest.mark.parametrize(
    "same",
    [
        moved(FINDING, 12),
        replace(FINDING, message="Rank 1 waits at train.py:100 for 3 s.", ranks=RankSet([2])),
        replace(FINDING, severity="warning", confidence="low", role="consequence"),
        replace(
            FINDING,
            where=(replace(CALL, source="    dist.all_reduce(  loss)".replace("  loss", "loss")), TEST),
        ),
        replace(FINDING, where=(*FINDING.where, replace(CALL, role="victim", line=3, source="x()"))),
    ],
    ids=["lines moved", "words and ranks", "how sure", "spaces", "victims"],
)
def test_same_defect_has_the_same_fingerprint(same: Finding) -> None:
    assert fingerprint(FINDING) == fingerprint(same)


@pytest.mark.parametrize(
    "other",
    [
        replace(FINDING, code="COL003"),
        replace(FINDING, where=(replace(CALL, file="eval.py"), TEST)),
        replace(FINDING, where=(replace(CALL, function="other"), TEST)),
        replace(FINDING, where=(replace(CALL, source="dist.barrier()"), TEST)),
        replace(FINDING, where=(CALL, replace(TEST, source="if rank == 1:"))),
    ],
    ids=["code", "file", "function", "call", "test"],
)
def test_other_defect_has_another(other: Finding) -> None:
    assert fingerprint(FINDING) != fingerprint(other)


def test_without_a_place_the_words_count_but_not_their_numbers() -> None:
    port = Finding("Port 29500 is held by process 4242.", code="NET001")
    again = replace(port, message="Port 29501 is held by process 7.")
    assert fingerprint(port) == fingerprint(again)
    assert fingerprint(port) != fingerprint(replace(port, message="Port 29500 is closed."))
