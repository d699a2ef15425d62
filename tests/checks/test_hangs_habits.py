"""Of two sides as large as each other the one whose call never followed the same calls before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.standstill import Stand
from ddpdoctor_checks.job.calls.habits import leaves_habit
from ddpdoctor_checks.job.hangs.standing import Place
from ddpdoctor_checks.job.hangs.verdicts import list_calls
from tests.checks.standing import collective, judge, proved, stand

Ops = tuple[tuple[str, int], ...]
TURN: Ops = (("all_gather", 10), ("all_gather", 11), ("reduce_scatter", 12), ("all_reduce", 13))
EVALUATION = ("broadcast", 30)


def walk(rank: int, *ops: tuple[str, int]) -> Stand:
    """Return a rank that made these calls, each an op and its line, and waits in the last."""
    return stand(rank, *(collective(op, number, line, 2) for number, (op, line) in enumerate(ops, 1)))


def test_the_rank_that_passes_over_a_call_of_its_turn_is_at_fault() -> None:
    usual = walk(0, *TURN, *TURN, *TURN[:3])
    skips = walk(1, *TURN, *TURN, *TURN[:2], TURN[0])
    found = proved([usual, skips])
    assert (found.ranks, found.where[0].line) == (RankSet([1]), 10)


@pytest.mark.parametrize(
    ("ops", "leaves"),
    [
        ((*TURN, *TURN, *TURN[:2], TURN[0]), True),
        ((*TURN, *TURN, *TURN[:2], TURN[2]), False),
        ((*TURN, *TURN, EVALUATION), None),
        ((*TURN * 3, EVALUATION, *TURN * 3, EVALUATION), False),
        ((*TURN, EVALUATION, *TURN * 3, EVALUATION), None),
        (TURN[:2], None),
    ],
    ids=["passes over", "goes on", "a first evaluation", "every third turn", "seldom", "too few calls"],
)
def test_habits(ops: Ops, leaves: bool | None) -> None:
    found = walk(0, *ops)
    assert leaves_habit(list_calls(Place(found, "collective", found.call))) is leaves


def create(rank: int, line: int, members: RankSet, *conditions: Frame) -> Stand:
    call = collective("new_group", 1, line, 4)
    return stand(rank, replace(call, made="1", members=members, conditions=conditions, default_group=False))


def test_a_group_that_is_created_under_a_condition_is_at_fault() -> None:
    last = Frame("train.py", 18, "if", "if self.is_last:")
    everyone = RankSet.span(4)
    found = judge(
        [
            *(create(rank, 21, everyone) for rank in (0, 1)),
            *(create(rank, 20, RankSet([2, 3]), last) for rank in (2, 3)),
        ]
    )
    assert found is not None
    assert (found.code, found.ranks, found.where[0].line) == ("COL006", RankSet([2, 3]), 20)
