"""The first collective that ranks issue from different lines, where they are blocked in a later one."""

from __future__ import annotations

from dataclasses import replace

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.standstill import Call, Stand
from tests.checks.standing import at, collective, judge, proved, stand

FORWARD, BACKWARD = ("all_gather", 10), ("reduce_scatter", 11)
SUMMON = ("all_gather", 30)


def walk(rank: int, *ops: tuple[str, int]) -> Stand:
    """Return a rank that made these calls, each an op and its line, and waits in the last."""
    return stand(rank, *(collective(op, number, line, 2) for number, (op, line) in enumerate(ops, 1)))


def test_the_rank_that_issues_one_more_is_named_by_its_line() -> None:
    steps = (FORWARD, BACKWARD) * 2
    found = proved([walk(0, *steps, SUMMON, FORWARD), walk(1, *steps, FORWARD, BACKWARD)])
    assert (found.code, found.ranks, found.victims) == ("COL002", RankSet([0]), RankSet([1]))
    assert (found.where[0].role, found.where[0].line) == ("culprit", 30)
    assert found.message == (
        "Up to collective #4 all came from the same lines, and #5 did not: rank 0 issued it (train.py:30, train) and "
        "rank 1 issued it (train.py:10, train); rank 0 had not been there before. Since then torch pairs collectives "
        "of different lines, until #6, where rank 0 calls all_gather of [4] float32 (train.py:10, train) and rank 1 "
        "calls reduce_scatter of [4] float32 (train.py:11, train)."
    )


def test_branches_that_issue_one_collective_from_two_lines_are_no_detour() -> None:
    steps = (FORWARD, BACKWARD) * 2
    one = walk(0, *steps, SUMMON, BACKWARD, FORWARD)
    other = walk(1, *steps, FORWARD, BACKWARD, BACKWARD)
    found = judge([one, other])
    assert found is not None
    assert "Up to" not in found.message


def test_a_line_that_both_have_been_at_names_no_rank_but_the_lines_that_called_it() -> None:
    def issue(number: int, op: str, caller: int) -> Call:
        return replace(collective(op, number, 20, 2), frames=(at(20, "loss"), at(caller)))

    before = [issue(number, "all_gather", 37 if number == 1 else 29) for number in range(1, 6)]
    here = stand(0, *before, issue(6, "all_gather", 37), issue(7, "all_gather", 37))
    there = stand(1, *before, issue(6, "all_gather", 29), issue(7, "reduce_scatter", 29))
    found = proved([here, there])
    assert (found.code, found.ranks) == ("COL003", RankSet([0, 1]))
    assert [place.line for place in found.where if place.role == "culprit"] == [37, 29]


def test_lines_that_never_agreed_tell_nothing() -> None:
    found = judge([walk(0, FORWARD, SUMMON, FORWARD), walk(1, BACKWARD, FORWARD, BACKWARD)])
    assert found is not None
    assert "Up to" not in found.message
