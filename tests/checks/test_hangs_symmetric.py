"""Standstills in which all ranks wait: when no rank diverged may be said, and when the network may be blamed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.standstill import Call, Stand
from ddpdoctor.judge import Finding
from ddpdoctor_checks.job.hangs.reading import INIT
from tests.checks.standing import TORCH, at, backward, collective, forward, judge, stand


def together(*ranks: int, op: str = "all_reduce", members: RankSet | None = None, **more: Any) -> list[Stand]:
    call = collective(op, 8, 88, members or RankSet(ranks))
    return [stand(rank, call, **{"still_s": 400.0, "host": "alpha", **more}) for rank in ranks]


def confirmed(stands: list[Stand], **more: Any) -> Finding:
    found = judge(stands, **{"still": 400.0, "stage": "confirmed", **more})
    assert found is not None
    return found


def test_all_members_in_one_call_are_said_not_to_have_diverged() -> None:
    found = confirmed(together(0, 1, 2))
    assert (found.code, found.confidence, found.ranks, found.victims) == (
        "COL005",
        "high",
        RankSet(),
        RankSet(),
    )
    assert "no rank diverged" in found.message


def test_the_network_is_blamed_only_where_there_is_one() -> None:
    one = confirmed(together(0, 1))
    assert "network" not in str(one.fix)
    two = confirmed(
        [*together(0, members=RankSet([0, 1])), *together(1, members=RankSet([0, 1]), host="beta")]
    )
    assert "test the network" in str(two.fix)


@pytest.mark.parametrize(
    "stands",
    [
        together(0, 1, threads=2),
        together(0, 1, raised=1),
        together(0, 1, members=RankSet([0, 1, 5])),
        together(0, 1, beside=(collective("gather_object", 1, 5, 2),)),
    ],
    ids=["two threads", "a call had raised", "a member is missing", "another thread is blocked"],
)
def test_where_calls_may_be_hidden_nobody_is_cleared(stands: list[Stand]) -> None:
    found = judge(stands, still=400.0, stage="confirmed", world=2)
    assert found is not None
    assert "no rank diverged" not in found.message
    assert found.confidence != "high" or found.code != "COL005"
    assert not found.victims


def test_ranks_that_compute_in_a_call_are_slow_and_not_blocked() -> None:
    """A wrapper that takes long to build on a busy machine."""
    wrap = Call(
        "DistributedDataParallel",
        members=RankSet([0, 1]),
        ordinal=1,
        index=1,
        frames=(at(9),),
        returned=False,
    )
    busy = [stand(rank, wrap, still_s=400.0, cpu_share=0.4) for rank in range(2)]
    assert judge(busy, still=400.0, stage="confirmed") is None
    assert judge([replace(each, cpu_share=0.0) for each in busy], still=400.0, stage="confirmed") is not None


def test_ranks_that_spin_for_an_accelerator_are_blocked_all_the_same() -> None:
    call = replace(collective("all_reduce", 8, 88, 2), device="cuda")
    spinning = [stand(rank, call, still_s=400.0, cpu_share=1.0, backend="nccl") for rank in range(2)]
    assert confirmed(spinning).code == "COL005"


PICKLED = (
    at(33, "__getstate__", "return self.compress()"),
    Frame(f"{TORCH}distributed/distributed_c10d.py", 2900, "_object_to_tensor"),
    Frame(f"{TORCH}distributed/distributed_c10d.py", 3100, "all_gather_object"),
    at(88),
)


def test_a_rank_whose_own_code_torch_runs_within_the_call_holds_the_others() -> None:
    """Equal counts say nothing of it: it has begun the call, and does not wait in it."""
    first = together(0, op="all_gather_object", members=RankSet([0, 1]))
    slow = together(1, op="all_gather_object", members=RankSet([0, 1]), frames=PICKLED)
    found = confirmed([*first, *slow])
    assert (found.code, found.ranks, found.where[0].line) == ("COL009", RankSet([1]), 33)
    assert "rank 1 blocks them" in found.message
    busy = [*first, replace(slow[0], cpu_share=0.9)]
    assert judge(busy, still=40.0, stage="suspected") is None


# worlds that are larger than what was started


def meeting(rank: int, asked: int, given: int | None, **more: Any) -> Stand:
    call = Call(INIT, members=RankSet.span(asked), ordinal=1, frames=(at(6),), returned=False)
    return stand(rank, call, **{"still_s": 12.0, "given_size": given, **more})


def test_a_world_that_the_script_made_larger_is_told() -> None:
    found = judge([meeting(rank, 4, 2) for rank in range(2)], still=12.0, stage="suspected", world=4)
    assert found is not None
    assert (found.code, found.ranks, found.where[0].line) == ("ENV003", RankSet([0, 1]), 6)
    assert "the launcher started 2: ranks 2-3 were never started" in found.message
    assert "network" not in str(found.fix)


def test_ranks_that_ask_for_worlds_of_different_size_are_told() -> None:
    stands = [meeting(0, 3, None), meeting(1, 2, None), meeting(2, 3, None)]
    found = judge(stands, still=12.0, stage="suspected")
    assert found is not None
    assert (found.code, found.ranks) == ("ENV003", RankSet([1]))


def test_ranks_that_look_for_each_other_at_different_ports_are_told() -> None:
    def found(*ports: int | None) -> Finding | None:
        return judge([meeting(n, len(ports), None, port=port) for n, port in enumerate(ports)], still=12.0)

    told = found(29500, 29501, 29500)
    assert told is not None
    assert (told.code, told.ranks, told.severity) == ("ENV004", RankSet([1]), "error")
    assert "29500 on ranks 0, 2 and 29501 on rank 1" in told.message
    both = found(29500, 29501)
    assert both is not None
    assert both.ranks == RankSet([0, 1])
    for ports in ((29500, 29500), (29500, None)):
        other = found(*ports)
        assert other is None or other.code != "ENV004"


def test_ranks_that_may_still_come_are_given_time() -> None:
    """Those of another host, of which this one knows nothing."""
    stands = [meeting(rank, 4, 4) for rank in range(2)]
    assert judge(stands, still=12.0, stage="suspected", world=4) is None
    found = judge(stands, still=400.0, stage="confirmed", world=4)
    assert found is not None
    assert (found.code, found.ranks, found.confidence) == ("NET006", RankSet([2, 3]), "medium")


def test_a_world_whose_ranks_are_all_there_is_not_too_large() -> None:
    found = confirmed([meeting(rank, 2, 2) for rank in range(2)])
    assert found.code == "COL005"


# two threads of a rank in one group

STARTED = Frame("/usr/lib/python3.11/threading.py", 982, "run")
CHECKPOINT = Frame(f"{TORCH}distributed/checkpoint/state_dict_saver.py", 300, "save")


def saving(*frames: Frame, members: RankSet | None = None, group: str = "0") -> Call:
    call = collective("gather_object", 1, 0, members or RankSet([0, 1]), group)
    return replace(call, frames=frames)


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ((CHECKPOINT, STARTED), "asynchronous checkpoint"),
        ((at(40, "report"), STARTED), "(train.py:40, report)"),
    ],
)
def test_two_threads_in_one_group_are_named(frames: tuple[Frame, ...], words: str) -> None:
    stands = [
        backward(rank, 3, 16, world=2, beside=(saving(*frames),), threads=2, still_s=12.0)
        for rank in range(2)
    ]
    found = judge(stands, still=12.0, stage="suspected")
    assert found is not None
    assert (found.code, found.ranks, found.victims) == ("COL004", RankSet([0, 1]), RankSet())
    assert words in found.message
    assert any("new_group" in (fix.code or "") for fix in found.fix)


@pytest.mark.parametrize(
    "call",
    [
        saving(Frame(f"{TORCH}nn/modules/_functions.py", 100, "backward")),
        saving(CHECKPOINT, STARTED, group="3", members=RankSet([0, 5])),
    ],
    ids=["a thread of autograd", "a separate group"],
)
def test_a_thread_that_shares_no_group_is_not_blamed(call: Call) -> None:
    stands = [backward(rank, 3, 16, world=2, beside=(call,), threads=2, still_s=12.0) for rank in range(2)]
    found = judge(stands, still=12.0, stage="suspected")
    assert found is None or found.code != "COL004"


# the second forward of a wrapped model, before which ranks agree on buckets

BUCKETS = (
    Frame(f"{TORCH}nn/parallel/distributed.py", 1775, "_pre_forward"),
    Frame(f"{TORCH}nn/parallel/distributed.py", 1886, "forward"),
    at(11, "main"),
)


def test_a_rank_that_has_left_the_loop_is_missed_in_the_next_forward() -> None:
    inside = stand(0, forward(1, 11, 2), frames=BUCKETS)
    left = stand(1, forward(1, 11, 2), collective("barrier", 1, 12, 2))
    found = judge([replace(inside, call=None), left])
    assert found is not None
    assert (found.code, found.ranks, found.details["proof"]) == ("COL002", RankSet([1]), True)
    assert "the forward pass #2 of DistributedDataParallel" in found.message
    assert not found.victims  # the loop may be too long on the one, or too short on the other


def test_ranks_that_all_begin_the_forward_hold_nobody() -> None:
    stands = [replace(stand(rank, forward(1, 11, 2), frames=BUCKETS), call=None) for rank in range(2)]
    found = judge(stands)
    assert found is None or found.code == "COL005"


def test_of_several_wrapped_models_on_other_lines_it_is_not_known_which_begins() -> None:
    other = replace(forward(1, 31, 2), index=2)
    first = stand(0, forward(1, 21, 2), other, frames=BUCKETS)
    found = judge(
        [replace(first, call=None), stand(1, forward(1, 21, 2), other, collective("barrier", 1, 12, 2))]
    )
    assert found is None or not found.details["proof"]
