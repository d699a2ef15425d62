"""Ranks that can never go on: who is named, with which code; each rule on a made-up look."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.standstill import Call
from tests.checks.standing import (
    GUARD,
    at,
    backward,
    collective,
    gone,
    judge,
    point,
    proved,
    stand,
)


def test_a_rank_in_another_call_than_the_rest_is_named_with_both_lines() -> None:
    found = proved([
        *[stand(rank, collective("all_reduce", 8, 88)) for rank in (0, 2, 3)],
        stand(1, collective("barrier", 8, 97), conditions=(replace(GUARD, source="if rank == 1:"),)),
    ])  # fmt: skip
    assert (found.code, found.ranks, found.victims) == ("COL002", RankSet([1]), RankSet([0, 2, 3]))
    assert found.where[0].line == 97
    assert [place.line for place in found.where if place.role == "condition"] == [17]
    assert "barrier #8 (train.py:97" in found.message
    assert "all_reduce #8 (train.py:88" in found.message


def test_a_test_that_keeps_the_fewer_away_is_shown_with_the_line_below_it() -> None:
    guard = replace(GUARD, function="unless", source="if is_main_process():")
    found = proved([
        stand(0, collective("broadcast", 1, 21, peer=0)),
        *[stand(rank, collective("gather_object", 1, 12), conditions=(guard,)) for rank in (1, 2, 3)],
    ])  # fmt: skip
    assert (found.ranks, found.where[0].line) == (RankSet([0]), 21)
    assert [place.line for place in found.where if place.role == "condition"] == [17]
    assert "train.py:17" in found.fix[0].text


def test_two_ranks_of_which_neither_is_guarded_cannot_be_told_apart() -> None:
    found = proved([
        stand(0, collective("all_reduce", 2, 88, world=2, group="tp")),
        stand(1, collective("all_reduce", 2, 97, world=2, group="dp")),
    ])  # fmt: skip
    assert (found.code, found.ranks) == ("COL002", RankSet([0, 1]))
    assert "the evidence does not show which side is wrong" in found.message


def test_of_two_ranks_the_one_under_a_test_on_the_rank_is_named() -> None:
    found = proved([
        stand(0, collective("barrier", 5, 97, world=2), conditions=(GUARD,)),
        backward(1, 9, 88, collective("barrier", 4, 97, world=2), world=2),
    ])  # fmt: skip
    assert (found.code, found.ranks) == ("COL002", RankSet([0]))


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"shape": (7,)}, "[7] float32"),
        ({"dtype": "float64"}, "float64"),
        ({"reduction": "max"}, "all_reduce(max)"),
        ({"peer": 2}, "root 2"),
    ],
)
def test_calls_of_one_line_that_do_not_fit_are_a_mismatch(more: dict[str, Any], word: str) -> None:
    found = proved([
        *[stand(rank, collective("all_reduce", 3, 20)) for rank in (0, 1)],
        stand(2, collective("all_reduce", 3, 20, **more)),
        stand(3, line=44),
    ])  # fmt: skip
    assert (found.code, found.ranks) == ("COL003", RankSet([2]))
    assert word in found.message


def test_the_first_call_that_differs_counts_not_where_ranks_have_come_to_since() -> None:
    """Rank 1 got its part of the broadcast and waits behind it; rank 2 never called it."""
    broadcast = collective("broadcast", 9, 22, world=3, peer=0)
    found = proved([
        stand(0, broadcast),
        stand(1, broadcast, collective("all_reduce", 10, 23, world=3)),
        stand(2, collective("broadcast", 8, 22, world=3, peer=0), collective("barrier", 9, 11, world=3)),
    ])  # fmt: skip
    assert (found.ranks, found.where[0].line) == (RankSet([2]), 11)


def test_a_rank_that_has_left_is_named_where_others_wait_for_it() -> None:
    left = gone(3, collective("all_reduce", 7, 80), exit_frames=(at(31, "stop", "sys.exit(0)"),))
    found = proved([*[stand(rank, collective("all_reduce", 8, 88)) for rank in range(3)], left])
    assert (found.code, found.ranks, found.role) == ("COL008", RankSet([3]), "cause")
    assert found.where[0].line == 31


@pytest.mark.parametrize("end", [{"exit_code": 1}, {"signal": 9}, {"ended": False}])
def test_a_rank_that_failed_is_left_to_its_launcher_first(end: dict[str, Any]) -> None:
    """Which may start all ranks anew; in the end its failure is the cause, and that others waited comes after it."""
    stands = [stand(0, collective("barrier", 1, 5, world=2)), gone(1, **end)]
    found = judge(stands)
    assert found is not None
    assert (found.code, found.role, found.details["proof"]) == ("COL008", "consequence", False)
    assert proved(stands, still=60.0).role == "consequence"


def test_a_rank_that_never_came_to_the_group_and_left_is_named() -> None:
    init = Call("init_process_group", members=RankSet.span(3), ordinal=1, frames=(at(4),), returned=False)
    found = proved([stand(0, init), stand(1, init), gone(2, exit_frames=(at(2, "load", "sys.exit(0)"),))])
    assert (found.code, found.ranks) == ("COL008", RankSet([2]))


def test_a_rank_that_is_not_asked_to_come_does_not_hold_those_that_are() -> None:
    init = Call("init_process_group", members=RankSet.span(2), ordinal=1, frames=(at(4),), returned=False)
    assert judge([stand(0, init), stand(1, init), gone(2)]) is None


def test_a_rank_that_left_after_doing_its_part_holds_nobody() -> None:
    sent = collective("broadcast", 5, 22, world=2, peer=1)
    assert judge([stand(0, sent), gone(1, sent)], still=1.8) is None


def test_ranks_of_which_one_has_done_its_part_are_not_stuck() -> None:
    """The root is through its broadcast and in the barrier behind; the data is on its way to the other one."""
    sent = collective("broadcast", 5, 22, world=2, peer=0)
    assert judge([stand(0, sent, collective("barrier", 6, 23, world=2)), stand(1, sent)]) is None


def test_shapes_that_hold_as_many_elements_fit() -> None:
    assert judge([
        stand(0, collective("all_reduce", 3, 20, world=3, shape=())),
        stand(1, collective("all_reduce", 3, 20, world=3, shape=(1,))),
        stand(2, line=44, cpu_share=0.9),
    ]) is None  # fmt: skip


def test_a_call_of_which_only_the_number_is_known_fits() -> None:
    assert judge([
        stand(0, collective("all_reduce", 3, 20, world=3)),
        stand(1, collective("unknown", 3, 20, world=3, shape=None, dtype=None)),
        stand(2, line=44, cpu_share=0.9),
    ]) is None  # fmt: skip


def test_functions_that_are_one_collective_fit() -> None:
    assert judge([
        stand(0, collective("all_gather_into_tensor", 3, 20, world=3)),
        stand(1, collective("all_gather", 3, 30, world=3)),
        stand(2, line=44, cpu_share=0.9),
    ]) is None  # fmt: skip


def test_groups_of_one_name_but_other_members_are_two_groups() -> None:
    low, high = RankSet([0, 1]), RankSet([2, 3])
    found = judge([
        stand(0, collective("all_reduce", 1, 9, low, "1")),
        stand(1, line=30, cpu_share=0.9),
        stand(2, collective("barrier", 1, 12, high, "1")),
        stand(3, line=30, cpu_share=0.9),
    ])  # fmt: skip
    assert found is None


def test_a_wait_for_ranks_that_were_not_seen_proves_nothing() -> None:
    """Both wait for each other's call only where they do: rank 2 may be the one that is late for both."""
    assert judge([stand(rank, collective("barrier", 4, 10, world=4)) for rank in range(2)], world=4) is None


def test_ranks_that_disagree_are_stuck_whatever_the_unseen_ones_do() -> None:
    found = proved(
        [stand(0, collective("barrier", 4, 10)), stand(1, collective("all_gather", 4, 20))], world=4
    )
    assert found.ranks == RankSet([0, 1])
    assert any("nothing was seen of ranks 2-3" in item.text for item in found.evidence)


@pytest.mark.parametrize("beside", [{"threads": 2}, {"others": (Frame("train.py", 18, "run"),)}])
def test_a_rank_with_another_thread_that_may_call_proves_nothing(beside: dict[str, Any]) -> None:
    """The thread of rank 1 may be about to send while its main thread waits in the barrier."""
    stands = [stand(0, point("recv", 1, 1, 9)), stand(1, collective("barrier", 1, 20, world=2), **beside)]
    found = judge(stands)
    assert found is not None
    assert (found.details["proof"], found.confidence) == (False, "medium")


def test_a_call_that_had_raised_makes_the_numbers_doubtful() -> None:
    stands = [
        stand(0, collective("barrier", 5, 9, world=2)),
        stand(1, collective("all_reduce", 5, 20, world=2), raised=1),
    ]
    found = judge(stands)
    assert found is not None
    assert found.details["proof"] is False


def test_what_was_overwritten_may_have_been_called() -> None:
    stands = [
        stand(0, collective("barrier", 1, 9, RankSet([0, 1]), "rare")),
        stand(1, collective("all_reduce", 9000, 20, world=2), complete=False),
    ]
    found = judge(stands)
    assert found is not None
    assert found.details["proof"] is False


def test_a_group_whose_ranks_are_not_known_proves_nothing() -> None:
    stands = [
        stand(0, collective("barrier", 2, 9, RankSet(), "7")),
        stand(1, collective("all_reduce", 4, 20, world=2)),
    ]
    found = judge(stands)
    assert found is not None
    assert (found.code, found.ranks, found.details["proof"]) == ("COL002", RankSet([0, 1]), False)


def test_a_monitored_barrier_ends_by_itself_and_proves_nothing() -> None:
    barrier = collective("monitored_barrier", 3, 20, world=2, shape=None, dtype=None)
    frames = (Frame("/x/torch/distributed/distributed_c10d.py", 5, "monitored_barrier"), at(20))
    stands = [
        replace(stand(0, replace(barrier, returned=None), frames=frames), call=None),
        stand(1, collective("all_gather", 3, 9, world=2)),
    ]
    found = judge(stands)
    assert found is not None
    assert found.details["proof"] is False


def test_who_waits_for_a_stuck_rank_is_no_part_of_the_cause() -> None:
    """Ranks 0 and 1 are in calls that do not fit; rank 2 only waits for a message of rank 1."""
    found = proved([
        stand(0, collective("barrier", 4, 10, RankSet([0, 1]), "dp")),
        stand(1, collective("all_reduce", 4, 20, RankSet([0, 1]), "dp")),
        stand(2, point("recv", 1, 1, 30)),
        stand(3, collective("all_gather", 9, 40)),
    ])  # fmt: skip
    assert (found.code, found.ranks) == ("COL003", RankSet([0, 1]))


def test_a_rank_that_is_gone_is_the_cause_also_where_others_wait_in_a_chain() -> None:
    found = proved([
        stand(0, point("recv", 1, 1, 30)),
        stand(1, collective("barrier", 4, 10, RankSet([1, 2]), "dp")),
        gone(2, collective("all_reduce", 3, 10, RankSet([1, 2]), "dp")),
    ])  # fmt: skip
    assert (found.code, found.ranks) == ("COL008", RankSet([2]))


def test_groups_are_matched_by_their_ranks() -> None:
    made = Call("new_group", members=RankSet([0, 1]), ordinal=1, frames=(at(7),), returned=False)
    found = proved([
        stand(0, made, conditions=(GUARD,)),
        *[stand(rank, collective("all_reduce", 1, 9, world=3)) for rank in (1, 2)],
    ])  # fmt: skip
    assert (found.code, found.ranks, found.where[0].line) == ("COL006", RankSet([0]), 7)


def test_members_that_make_a_group_alone_shift_no_numbers() -> None:
    """new_group on its members is no collective of the world: the ranks' barriers still meet."""
    made = Call("new_group", members=RankSet([0, 1]), ordinal=1, frames=(at(7),), returned=True)
    barrier = collective("barrier", 1, 9, world=3)
    assert judge([stand(0, made, barrier), stand(1, made, barrier), stand(2, line=20, cpu_share=0.9)]) is None


def test_work_that_was_asked_for_waits_for_the_call_that_is_missing() -> None:
    asked = [
        replace(collective("all_reduce", number, 9 + number), asynchronous=True, returned=True)
        for number in (1, 3)
    ]
    wait = at(14, "finish", "work.wait()")
    barriers = [collective("barrier", number, 26) for number in (2, 3)]
    waiting = replace(stand(1, asked[0], barriers[0], asked[1], frames=(wait,)), call=None)
    rest = [stand(rank, asked[0], *barriers) for rank in (0, 2, 3)]
    found = proved([waiting, *rest])
    assert (found.ranks, found.where[0].line) == (RankSet([1]), 14)
    assert "waits for all_reduce #3, issued (train.py:12" in found.message


def test_work_that_all_have_asked_for_is_on_its_way() -> None:
    asked = replace(collective("all_reduce", 1, 10, world=2), asynchronous=True, returned=True)
    waiting = replace(stand(0, asked, frames=(at(14, "finish", "work.wait()"),)), call=None)
    assert judge([waiting, stand(1, asked, collective("barrier", 2, 26, world=2))]) is None


def test_a_cycle_through_groups_names_all_sides() -> None:
    ring = [RankSet([rank, (rank + 1) % 4]) for rank in range(4)]
    found = proved([stand(rank, collective("all_reduce", 1, 12, ring[rank], str(rank))) for rank in range(4)])
    assert (found.code, found.ranks) == ("COL002", RankSet.span(4))


def test_ranks_in_step_are_no_deadlock_however_long_they_wait() -> None:
    stands = [stand(rank, collective("all_reduce", 8, 88)) for rank in range(4)]
    assert judge(stands, still=2.0) is None
    found = judge(stands, still=30.0)
    assert found is not None
    assert (found.code, found.ranks, found.details["proof"]) == ("COL005", RankSet(), False)


@pytest.mark.unmeasured
@pytest.mark.parametrize("world", [1024, 16384])
def test_many_ranks_are_judged_in_time(world: int) -> None:
    guilty = 700
    stands = [stand(rank, collective("all_reduce", 8, 88, world)) for rank in range(world) if rank != guilty]
    stands.insert(guilty, stand(guilty, collective("barrier", 8, 97, world)))
    began = time.process_time()
    found = proved(stands)
    assert time.process_time() - began < 10.0
    assert (found.ranks, len(found.victims)) == (RankSet([guilty]), world - 1)
    assert len(found.message) < 400


@pytest.mark.unmeasured
def test_many_small_groups_and_pairs_are_judged_in_time() -> None:
    world = 16384
    stands = []
    for rank in range(0, world, 8):
        members = RankSet(range(rank, rank + 8))
        group = collective("all_reduce", 3, 12, members, f"tp{rank}")
        stands += [stand(each, group) for each in range(rank, rank + 6)]
        stands += [
            stand(rank + 6, point("recv", rank + 7, 1, 40)),
            stand(rank + 7, point("recv", rank + 6, 1, 40)),
        ]
    began = time.process_time()
    found = proved(stands)
    assert time.process_time() - began < 10.0
    assert found.code == "COL011"
    assert len(found.message) < 600


@pytest.mark.unmeasured
def test_many_ranks_that_wait_for_work_are_judged_in_time() -> None:
    world = 4096
    asked = [
        replace(collective("all_reduce", number, 10, world), asynchronous=True, returned=True)
        for number in range(1, 61)
    ]
    stands = [
        replace(stand(rank, *asked, frames=(at(14, "finish", "work.wait()"),)), call=None)
        for rank in range(world - 1)
    ]
    stands.append(stand(world - 1, *asked[:-1], collective("barrier", 60, 26, world)))
    began = time.process_time()
    found = proved(stands)
    assert time.process_time() - began < 10.0
    assert found.ranks == RankSet([world - 1])


def test_two_sides_of_one_test_are_calls_that_do_not_fit_whoever_called_them_before() -> None:
    """``if r == 0: gather(); reduce()`` and ``else: reduce(); gather()``: the order differs, and neither is to blame."""
    inside = [collective("all_reduce", number, 4, 2) for number in range(1, 6)]
    sides = [
        stand(
            rank, *inside, collective(op, 6, line, 2), conditions=(Frame("train.py", 13, kind, "if r == 0:"),)
        )
        for rank, op, line, kind in ((0, "all_gather", 8, "if"), (1, "all_reduce", 4, "else"))
    ]
    found = proved(sides)
    assert (found.code, found.ranks, found.victims) == ("COL003", RankSet([0, 1]), RankSet())


def test_a_majority_counts_whoever_calls_from_where() -> None:
    """Four ranks make one call from two lines; the three that make another one are the fewer."""
    many = [stand(rank, collective("all_reduce", 3, 5 if rank < 2 else 9, 7)) for rank in range(4)]
    few = [stand(rank, collective("all_reduce", 3, 7, 7, shape=(20,))) for rank in (4, 5, 6)]
    found = proved([*many, *few])
    assert (found.code, found.ranks, found.victims) == ("COL003", RankSet([4, 5, 6]), RankSet.span(4))
    away = [stand(rank, collective("barrier", 1, 30, 7, "1")) for rank in (4, 5, 6)]
    found = proved([*many, *away])
    assert (found.code, found.ranks, found.victims) == ("COL002", RankSet([4, 5, 6]), RankSet.span(4))


def test_of_two_sides_as_large_nobody_is_blamed_for_the_other() -> None:
    shapes = {0: (4,), 1: (4,), 2: (20,), 3: (20,), 4: (30,)}
    found = proved(
        [stand(rank, collective("all_reduce", 3, 5, 5, shape=shape)) for rank, shape in shapes.items()]
    )
    assert (found.code, found.ranks, found.victims) == ("COL003", RankSet.span(5), RankSet())


@pytest.mark.parametrize(
    ("makers", "guarded", "ranks"),
    [((1, 2, 3), True, (1, 2, 3)), ((1, 2, 3), False, (0,)), ((2, 3), False, (0, 1, 2, 3))],
)
def test_who_makes_a_group_alone_and_who_leaves_it_out_is_said_alike_everywhere(
    makers: tuple[int, ...], guarded: bool, ranks: tuple[int, ...]
) -> None:
    made = Call("new_group", members=RankSet.span(4), ordinal=1, frames=(at(9),), returned=False)
    test = (Frame("train.py", 8, "if", "if rank != 0:"),) if guarded else ()
    found = proved([
        stand(rank, made, conditions=test) if rank in makers else stand(rank, collective("barrier", 1, 20))
        for rank in range(4)
    ])  # fmt: skip
    blamed = RankSet().union(*(place.ranks for place in found.where if place.role == "culprit"))
    assert (found.code, found.ranks, blamed) == ("COL006", RankSet(ranks), RankSet(ranks))
    assert not set(found.victims) & set(found.ranks)
