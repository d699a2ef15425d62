"""Forwards and backwards of DistributedDataParallel in which ranks wait, and those in which they do not."""

from __future__ import annotations

from dataclasses import replace

from ddpdoctor.evidence import Frame, RankSet
from tests.checks.standing import (
    GUARD,
    SYNC,
    at,
    backward,
    collective,
    forward,
    judge,
    point,
    proved,
    stand,
)


def test_a_wrapper_of_a_smaller_group_waits_for_its_own_ranks_only() -> None:
    """Pipeline of two stages: the second one receives from the first, which reduces among itself."""
    first = RankSet([0, 1])
    stands = [
        backward(0, 3, 50, world=first),
        stand(1, forward(3, 50, first), line=51, cpu_share=0.8),
        stand(2, point("recv", 0, 4, 60)),
        stand(3, point("recv", 1, 4, 60)),
    ]
    assert judge(stands) is None


def test_validation_through_the_wrapper_on_one_rank_says_what_to_call_instead() -> None:
    inside = replace(forward(6, 14, 2), returned=False)
    found = proved([
        replace(stand(0, forward(5, 30, 2), inside, conditions=(GUARD,), frames=(SYNC, at(14))), call=inside),
        stand(1, forward(5, 30, 2), collective("barrier", 1, 28, world=2)),
    ])  # fmt: skip
    assert (found.code, found.ranks) == ("COL002", RankSet([0]))
    assert "model.module" in (found.fix[0].code or "")
    assert (
        "rank 1 ran 5 forward passes of the wrapped model and rank 0 ran 6 forward passes"
        in found.evidence[-1].text
    )


def test_a_forward_that_computes_is_no_wait() -> None:
    inside = replace(forward(6, 14, 2), returned=False)
    busy = replace(stand(0, forward(5, 30, 2), inside, frames=(at(99, "layer"), at(14))), call=inside)
    found = judge([busy, stand(1, collective("barrier", 1, 28, world=2))])
    assert found is not None
    assert (found.code, found.ranks) == ("COL009", RankSet([0]))


def test_a_rank_that_ran_out_of_batches_is_told_by_its_forwards() -> None:
    found = proved([
        backward(0, 8, 40), backward(2, 8, 40), backward(3, 8, 40),
        stand(1, forward(7, 40), collective("barrier", 1, 50)),
    ])  # fmt: skip
    assert (found.code, found.ranks) == ("COL002", RankSet([1]))
    assert "rank 1 ran 7 forward passes" in found.evidence[-1].text
    assert any("drop_last" in (fix.code or "") for fix in found.fix)


def test_a_backward_on_a_device_waits_for_what_is_queued_there_and_proves_nothing() -> None:
    stands = [
        *[backward(rank, 8, 40, world=3, backend="nccl") for rank in (0, 2)],
        stand(1, forward(7, 38, 3), collective("barrier", 1, 50, world=3)),
    ]
    found = judge(stands)
    assert found is not None
    assert (found.details["proof"], found.ranks) == (False, RankSet([1]))


def test_a_backward_within_no_sync_waits_for_nobody() -> None:
    stands = [backward(0, 8, 40, world=2), stand(1, forward(8, 40, 2), collective("barrier", 1, 50, world=2))]
    assert judge(stands) is not None
    local = tuple(replace(call, reduces=False) for call in stands[0].recent)
    found = judge([replace(stands[0], recent=local), stands[1]], still=3.0)
    assert found is not None
    assert (found.code, found.ranks, found.details["proof"]) == ("COL009", RankSet([0]), False)


def test_a_backward_that_has_no_processor_is_no_wait() -> None:
    """On a machine with too many processes a rank that computes may get next to none of it."""
    stands = [backward(0, 8, 40, world=2), stand(1, forward(8, 40, 2), collective("barrier", 1, 50, world=2))]
    assert judge([replace(stands[0], state="R"), stands[1]]) is None


def test_a_loop_that_one_rank_has_left_is_named() -> None:
    loop = Frame("train.py", 36, "for", "for batch in loader:")
    found = proved([
        backward(0, 8, 40, conditions=(loop,)), backward(2, 8, 40, conditions=(loop,)),
        stand(1, forward(7, 38, 3), collective("barrier", 1, 50, world=3)),
    ], world=3)  # fmt: skip
    assert "rank 1 has left the loop (train.py:36): it waits in barrier #1 (train.py:50" in found.message
    assert [place.line for place in found.where if place.role == "condition"] == [36]


def test_a_loop_that_both_are_in_was_not_left() -> None:
    loop = Frame("train.py", 36, "for", "for batch in loader:")
    found = proved([
        backward(0, 8, 40, conditions=(loop,)), backward(2, 8, 40, conditions=(loop,)),
        stand(1, forward(7, 38, 3), collective("barrier", 1, 50, world=3), conditions=(loop,)),
    ], world=3)  # fmt: skip
    assert "left the loop" not in found.message


def test_a_rank_in_the_next_forward_has_done_its_backward() -> None:
    later = replace(forward(9, 38), returned=False)
    stands = [backward(0, 8, 40), replace(stand(1, forward(8, 38), later, frames=(SYNC, at(38))), call=later)]
    assert judge([*stands, backward(2, 8, 40), backward(3, 8, 40)]) is None
