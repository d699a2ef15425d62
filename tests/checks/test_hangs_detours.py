"""The first collective that ranks issue from different lines, where they are blocked in a later one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.evidence import Frame, RankSet
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


def evaluate(*conditions: Frame, left: bool = False) -> tuple[Stand, Stand]:
    """Rank 0 is below a test that rank 1 has passed: it evaluates between two steps, and waits in the second batch."""

    def issue(op: str, *frames: Frame) -> Call:
        return replace(collective(op, 0, 0, 2), frames=frames)

    def number(*calls: Call) -> list[Call]:
        return [replace(call, ordinal=place) for place, call in enumerate(calls, 1)]

    main = at(42, "<module>")
    forward, again = (issue("all_gather", *way, main) for way in ((at(20, "loss"), at(31)), (at(33),)))
    reduce = issue("reduce_scatter", at(33), main)
    batch = issue("all_gather", at(20, "loss"), at(25, "evaluate"))
    last = issue("all_gather", at(20, "loss"), *(() if left else (at(25, "evaluate"),)), at(37), main)
    step = (forward, again, reduce)
    here = stand(0, *number(*step, *step, batch, batch, last), conditions=conditions)
    there = stand(1, *number(*step, *step, *step), conditions=(LOOP,))
    return here, there


TEST = Frame("train.py", 35, "if", "if loss.item() < self.best:")
LOOP = Frame("train.py", 30, "for", "for step in range(steps):")


def test_the_test_between_both_lines_decides_which_way_a_rank_goes() -> None:
    found = proved(evaluate(TEST, LOOP))
    assert (found.where[0].line, found.where[0].role) == (35, "culprit")
    assert "The `if` in train.py:35 decides which way a rank goes." in found.message
    assert found.fix[0].text.startswith("decide train.py:35 by a value that all ranks share")


def leave_backward(*, elsewhere: bool = False) -> tuple[Stand, Stand]:
    """Rank 0 has left its turn before the backward pass and is in the next forward pass: of calls that are over only
    the innermost line is kept."""
    main = at(42, "<module>")
    forward = replace(collective("all_gather", 0, 0, 2), frames=(at(10, "forward"),))
    again = replace(collective("all_gather", 0, 0, 2), frames=(at(33), main))
    reduce = replace(collective("reduce_scatter", 0, 0, 2), frames=(at(33), main))
    steps = (forward, again, reduce) * 2
    beyond = replace(forward, frames=(at(11 if elsewhere else 10, "forward"), at(31), main))

    def number(*calls: Call) -> list[Call]:
        return [replace(call, ordinal=place) for place, call in enumerate(calls, 1)]

    here = stand(0, *number(*steps, forward, forward, beyond), conditions=(LOOP,))
    there = stand(1, *number(*steps, forward, again, reduce), conditions=(LEFT, LOOP))
    return here, there


LEFT = Frame("train.py", 32, "unless", "if is_spike(loss.item()):")


def test_the_test_by_which_a_rank_left_its_turn_for_the_next() -> None:
    found = proved(leave_backward())
    assert (found.where[0].line, found.where[0].role) == (32, "culprit")
    assert "The `if` in train.py:32 decides which way a rank goes." in found.message


def test_callers_of_another_line_are_not_those_of_a_call_that_is_over() -> None:
    assert "decides which way" not in proved(leave_backward(elsewhere=True)).message


@pytest.mark.parametrize(
    ("conditions", "left"),
    [
        ((LOOP,), False),
        ((TEST, replace(TEST, line=33), LOOP), False),
        ((replace(TEST, line=36, function="for"), LOOP), False),
        ((replace(TEST, source="if dist.is_initialized():"), LOOP), False),
        ((TEST, LOOP), True),
    ],
    ids=["no test", "two tests", "another loop", "the same on all ranks", "no longer below it"],
)
def test_where_more_may_decide_no_test_is_named(conditions: tuple[Frame, ...], left: bool) -> None:
    found = proved(evaluate(*conditions, left=left))
    assert "decides which way" not in found.message
