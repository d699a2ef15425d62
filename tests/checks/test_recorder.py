"""Recorded calls of ranks: what is wrong, who is the odd one, and what is no fault at all."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ddpdoctor.evidence import Evidence, Frame, Launch, RankSet
from ddpdoctor.evidence.collectives import (
    COMPLETED,
    RETIRED,
    SCHEDULED,
    STARTED,
    RecordedCall,
)
from ddpdoctor.evidence.job import ProcessRecord
from ddpdoctor_checks.job.calls.matching import match_calls
from tests.checks.jobs import Job
from tests.checks.recorded import Made, first, judge, lines, nothing_found, with_job


def test_a_call_that_one_rank_never_makes() -> None:
    found = first(Made(4).together().call([0, 1, 3], "all_reduce", 88, 4, STARTED))
    assert (found.code, str(found.ranks), str(found.victims), found.confidence) == (
        "COL002",
        "2",
        "0-1,3",
        "high",
    )
    assert found.message == (
        "Ranks 0-1, 3 wait in all_reduce #4 (train.py:88); rank 2 had not issued it: its last collective was "
        "barrier #3 (train.py:12)."
    )
    assert lines(found) == [("2", 12, "culprit"), ("0-1,3", 88, "victim")]
    assert found.decisive


def test_a_call_that_only_one_rank_makes_is_that_ranks_fault() -> None:
    found = first(Made(4).together().call([0], "all_reduce", 88, 4, STARTED))
    assert (found.code, str(found.ranks)) == ("COL002", "0")
    assert lines(found)[0] == ("0", 88, "culprit")


def test_with_two_ranks_it_cannot_be_told() -> None:
    found = first(Made(2).together().call([0], "all_reduce", 88, 4, STARTED))
    assert (found.code, str(found.ranks), found.confidence) == ("COL002", "", "medium")
    assert "the evidence does not show which side is wrong" in found.message
    assert {place.role for place in found.where} == {"culprit"}


DIFFERENT: dict[str, Callable[[Made], object]] = {
    "operation": lambda made: made.call([1], "broadcast", 90, 4, STARTED),
    "shape": lambda made: made.call([1], "all_reduce", 90, 4, STARTED, shape=(8,)),
    "type": lambda made: made.call([1], "all_reduce", 90, 4, STARTED, dtype="float64"),
    "root": lambda made: made.call([1], "all_reduce", 90, 4, STARTED, root=1),
    "reduction": lambda made: made.call([1], "all_reduce", 90, 4, STARTED, reduction="max"),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_calls_that_do_not_fit(what: str) -> None:
    made = Made(4).together().call([0, 2, 3], "all_reduce", 88, 4, STARTED)
    DIFFERENT[what](made)
    found = first(made)
    assert (found.code, str(found.ranks), str(found.victims)) == ("COL003", "1", "0,2-3")
    assert lines(found) == [("1", 90, "culprit"), ("0,2-3", 88, "victim")]
    assert "(train.py:88)" in found.message
    assert "(train.py:90)" in found.message


def test_the_first_rank_may_be_the_odd_one() -> None:
    made = (
        Made(3).together().call([0], "broadcast", 90, 4, STARTED).call([1, 2], "all_reduce", 88, 4, STARTED)
    )
    assert str(first(made).ranks) == "0"


def test_two_ranks_that_call_different_things_are_both_shown() -> None:
    made = Made(2).together().call([0], "broadcast", 90, 4, STARTED).call([1], "all_reduce", 88, 4, STARTED)
    found = first(made)
    assert (found.code, str(found.ranks), found.confidence) == ("COL003", "", "medium")
    assert "the evidence does not show which side is wrong" in found.message


def test_sides_of_equal_size_leave_it_open() -> None:
    made = (
        Made(4)
        .together()
        .call([0, 1], "broadcast", 90, 4, STARTED)
        .call([2, 3], "all_reduce", 88, 4, STARTED)
    )
    assert str(first(made).ranks) == ""


def test_a_rank_that_left_a_loop_earlier_never_made_the_call() -> None:
    made = Made(3)
    for number in range(1, 5):
        made.call(range(3), "all_reduce", 28, number)
    found = first(made.call([0, 2], "all_reduce", 28, 5, STARTED).call([1], "barrier", 30, 5, STARTED))
    assert (found.code, str(found.ranks), str(found.victims)) == ("COL003", "1", "0,2")
    assert found.message == (
        "Ranks 0, 2 are in all_reduce #5 (train.py:28); rank 1 never issued it: it is in barrier #5 (train.py:30)."
    )


def test_a_forward_of_the_wrapper_on_one_rank_is_none_of_the_others_calls() -> None:
    made = Made(3).together().call([1, 2], "barrier", 28, 4, STARTED)
    site = Frame("/site-packages/torch/nn/parallel/distributed.py", 1700, "_sync_buffers")
    stack = made.table.stack((site, Frame("train.py", 14, "validate")))
    call = RecordedCall("broadcast", made.table.group("0", "default_pg"), ((8,),), stack=stack)
    made.rows[0].append((made.table.call(call), 4, STARTED))
    found = first(made)
    assert (found.code, str(found.ranks)) == ("COL003", "0")
    assert "broadcast #4 by the forward pass of DistributedDataParallel (train.py:14)" in found.message
    assert "model.module" in (found.fix[0].code or "")


STEP = [("all_reduce", 20), ("all_gather", 21), ("broadcast", 22), ("reduce_scatter", 23)]


@pytest.mark.parametrize(("shift", "words"), [(1, "skipped"), (-1, "issues one extra collective")])
def test_a_rank_that_left_a_call_out_or_made_one_more_is_told_so(shift: int, words: str) -> None:
    made = Made(3).together()
    for number in range(4, 14):
        made.call([0, 1], *STEP[number % 4], number)
        op, line = STEP[(number + shift) % 4] if number >= 7 else STEP[number % 4]
        made.call([2], *((op, line) if shift > 0 or number != 7 else ("barrier", 99)), number)
    found = first(made)
    assert (found.code, str(found.ranks)) == ("COL002", "2")
    assert words in found.message
    assert "#7" in found.message


def swapped(world: int, odd: Sequence[int], **more: Any) -> Made:
    made = Made(world).together()
    rest = [rank for rank in range(world) if rank not in odd]
    for n, (usual, other) in enumerate([(30, 31), (31, 30)]):
        made.call(rest, "all_reduce", usual, 4 + n, **more).call(odd, "all_reduce", other, 4 + n, **more)
    return made


def test_equal_calls_from_lines_that_have_changed_places() -> None:
    found = first(swapped(4, [3]))
    assert (found.code, str(found.ranks), found.confidence) == ("COL004", "3", "high")
    assert lines(found) == [("3", 31, "culprit"), ("0-2", 30, "victim")]


def test_of_two_ranks_either_order_may_be_the_wrong_one() -> None:
    found = first(swapped(2, [1]))
    assert (found.code, str(found.ranks), found.confidence) == ("COL004", "", "medium")


def test_branches_that_make_one_call_from_two_lines_are_no_fault() -> None:
    made = Made(3).together()
    for number in range(4, 40):
        made.call([0], "all_reduce", 30 + number % 2, number).call(
            [1, 2], "all_reduce", 50 + number % 2, number
        )
    assert nothing_found(made)


@pytest.mark.parametrize("op", ["broadcast", "all_reduce"])
def test_ranks_that_take_turns_are_no_fault(op: str) -> None:
    made = Made(4).together()
    for number in range(4, 8):
        giver = number - 4
        made.call([giver], op, 30, number)
        made.call([rank for rank in range(4) if rank != giver], op, 31, number)
    assert nothing_found(made)


def test_two_ranks_that_broadcast_in_turn_are_no_fault() -> None:
    made = Made(2).together()
    for number in range(4, 12):
        made.call([number % 2], "broadcast", 30, number).call([1 - number % 2], "broadcast", 31, number)
    assert nothing_found(made)


def test_views_of_as_many_elements_and_uneven_splits_fit() -> None:
    made = (
        Made(2)
        .together()
        .call([0], "all_reduce", 20, 4, shape=(2, 3))
        .call([1], "all_reduce", 20, 4, shape=(6,))
    )
    made.call([0], "all_to_all_single", 21, 5, shape=(9,)).call([1], "all_to_all_single", 21, 5, shape=(2,))
    assert nothing_found(made)


def test_a_dump_made_earlier_is_no_fault() -> None:
    made = Made(3).together().call([0, 2], "all_reduce", 40, 4).call([0, 2], "all_reduce", 41, 5)
    assert nothing_found(made)
    assert str(match_calls(made.log()).stale) == "1"


def test_a_root_that_went_on_is_no_fault() -> None:
    made = Made(3).together().call([0], "broadcast", 40, 4, SCHEDULED + RETIRED)
    assert nothing_found(made)


def test_what_gloo_forgot_last_may_have_failed() -> None:
    found = first(Made(3).together().call([0, 1], "all_reduce", 40, 4, SCHEDULED + RETIRED))
    assert (found.code, str(found.ranks), found.confidence) == ("COL002", "2", "medium")


def test_a_gap_in_the_numbers_is_no_missing_call() -> None:
    made = Made(3).together()
    made.call(range(3), "all_reduce", 40, 6).call(range(3), "all_reduce", 41, 9)
    assert nothing_found(made)


def test_coalesced_calls_share_a_number() -> None:
    made = Made(3).together()
    for line in (40, 41, 42):
        made.call(range(3), "all_reduce", line, 4)
    made.call(range(3), "all_reduce", 43, 5)
    assert nothing_found(made)
    found = first(made.call([0, 1], "all_reduce", 44, 6, STARTED).call([2], "broadcast", 45, 6, STARTED))
    assert (found.code, str(found.ranks), found.details["sequence"]) == ("COL003", "2", 6)


def test_coalesced_calls_of_which_one_differs() -> None:
    made = Made(3).together()
    for line in (40, 41):
        made.call([0, 1], "all_reduce", line, 4).call([2], "all_reduce", line, 4, shape=(line - 36,))
    assert first(made).code == "COL003"


def test_calls_that_were_overwritten_are_not_missing() -> None:
    made = Made(2)
    for number in range(1, 30):
        made.call([0], "all_reduce", 40, number)
        if number > 12:
            made.call([1], "all_reduce", 40, number)
    made.changes[1] = {"overwritten": 12}
    assert nothing_found(made)


def test_ranks_without_a_dump_are_looked_for() -> None:
    made = Made(4).together()
    del made.rows[2]
    found = first(made.call([0, 1, 3], "all_reduce", 88, 4, STARTED))
    assert (found.code, str(found.ranks), found.confidence) == ("COL005", "2", "medium")
    assert "rank 2 left no dump" in found.message


def test_all_ranks_in_one_call_are_nobodys_fault() -> None:
    made = Made(4).together().call(range(4), "all_reduce", 88, 4, STARTED)
    found = first(made)
    assert (found.code, str(found.ranks), found.confidence, found.severity) == ("COL005", "", "low", "error")
    made.written_ns = None
    assert first(made).severity == "warning", "nothing says that it timed out"


def test_a_rank_whose_device_has_not_come_to_the_call_is_named() -> None:
    made = (
        Made(4)
        .together()
        .call([0, 1, 3], "all_reduce", 88, 4, STARTED)
        .call([2], "all_reduce", 88, 4, SCHEDULED)
    )
    found = first(made)
    assert (found.code, str(found.ranks), found.confidence) == ("COL005", "2", "medium")
    assert "rank 2 has enqueued it, but its device has not reached it" in found.message


def test_a_group_that_was_made_again_counts_from_one() -> None:
    made = Made(3).together().together()
    found = first(made.call([0, 1], "all_reduce", 88, 4, STARTED))
    assert (found.code, str(found.ranks), found.details["sequence"]) == ("COL002", "2", 4)


def test_a_group_of_some_ranks_has_its_own_numbers() -> None:
    members = RankSet([1, 3])
    made = Made(4).together().call([1, 3], "all_reduce", 50, 1, group="2", members=members)
    found = first(made.call([1], "all_reduce", 51, 2, STARTED, group="2", members=members))
    assert found.code == "COL002"
    assert "of group 2" in found.message
    assert "rank 3 had not issued it" in found.message


def test_a_rank_that_waits_in_another_group_is_not_the_cause() -> None:
    pair = RankSet([0, 1])
    made = Made(3).together()
    made.call([1, 2], "all_reduce", 60, 4, STARTED)  # rank 0 does not come,
    made.call([0], "all_reduce", 61, 1, STARTED, group="1", members=pair)  # for it waits here for rank 1
    report = judge(made)
    assert {difference["group"] for difference in report.findings[0].details["others"]} | {
        report.findings[0].details["group"]
    } == {"0", "1"}
    assert "; meanwhile rank 0 is blocked in a collective of group 1" in report.findings[0].message


def test_two_ranks_in_two_groups_in_opposite_order() -> None:
    made = (
        Made(2)
        .together()
        .call([0], "all_reduce", 11, 1, SCHEDULED, group="1")
        .call([1], "all_reduce", 11, 1, SCHEDULED, group="2")
    )
    found = first(made)
    assert (found.code, str(found.ranks), found.confidence) == ("COL002", "", "medium")
    assert (
        "rank 1 had not issued it: issued no collective on the group at all; meanwhile rank 1 is blocked in a collective of group 2"
        in found.message
    )


def pairs(odd: str, op: str = "all_reduce") -> Made:
    """Two pairs of ranks make a call each at line 50, then all make one at line 60; rank 1 or 3 does otherwise."""
    made = Made(4).together()
    for group, members in (("1", (0, 1)), ("2", (2, 3))):
        for rank in members:
            if odd == "leaves it out" and rank == 1:
                continue
            stuck = group == ("1" if odd == "leaves it out" else "2")
            other = odd == "calls another" and rank == 3
            made.call(
                [rank], op if other else "all_reduce", 55 if other else 50, 1, STARTED if stuck else COMPLETED + RETIRED,
                group=group, members=RankSet(members),
            )  # fmt: skip
    return made.call([1, 2, 3] if odd == "leaves it out" else [0, 1], "all_reduce", 60, 4, STARTED)


def test_of_two_ranks_that_wait_for_each_other_the_one_that_left_out_what_others_passed() -> None:
    found = first(pairs("leaves it out"))
    assert (found.code, str(found.ranks), found.confidence) == ("COL002", "1", "medium")
    assert found.details["group"] == "1"


def test_of_two_ranks_in_a_group_other_groups_tell_the_odd_one() -> None:
    found = first(pairs("calls another", "broadcast"))
    assert (found.code, str(found.ranks), found.confidence) == ("COL003", "3", "medium")


def test_a_group_of_one_rank_is_no_fault() -> None:
    assert nothing_found(Made(2).together().call([0], "all_reduce", 11, 1, SCHEDULED + RETIRED, group="1"))


def test_a_rank_that_waits_in_a_group_of_nobody_knows_whom_is_not_fine() -> None:
    report = judge(Made(4).together().call([3], "all_reduce", 11, 1, SCHEDULED, group="7"))
    reason = next(row.reason for row in report.checks if row.id == "recorder.calls")
    assert reason == "rank 3 is blocked in all_reduce #1 of group 7, and its members are not known"
    assert report.verdict.status == "unknown"


def test_ranks_in_one_broadcast_may_have_taken_different_roots() -> None:
    found = first(Made(4).together().call(range(4), "broadcast", 88, 4, SCHEDULED))
    assert (found.code, found.confidence) == ("COL005", "low")
    assert "different roots, which the recorder does not keep" in found.message


def test_groups_of_one_name_with_other_members() -> None:
    made = Made(3).together()
    known = {0: RankSet([0, 1]), 1: RankSet([0, 1]), 2: RankSet([0, 1, 2])}
    for rank, members in known.items():
        made.changes[rank] = {"groups": (made.table.group("1", "", members),)}
    found = first(made)
    assert (found.code, str(found.ranks)) == ("COL006", "2")


def test_groups_of_other_ranks_may_bear_one_name() -> None:
    made = Made(4).together()
    for rank in range(4):
        members = RankSet([0, 1] if rank < 2 else [2, 3])
        made.changes[rank] = {"groups": (made.table.group("1", "", members),)}
    assert nothing_found(made)


def test_a_rank_that_had_ended_well_left_early() -> None:
    made = Made(3).together().call([0, 1], "all_reduce", 88, 4, STARTED)
    job = Job(3).complains([0, 1], 20.0)
    job.set(2, exit_code=0)
    found = first(with_job(made, job))
    assert (found.code, str(found.ranks)) == ("COL008", "2")
    assert "wait in all_reduce #4 (train.py:88)" in found.message


def test_an_exception_goes_before_what_others_waited_in() -> None:
    made = Made(3).together().call([0, 1], "all_reduce", 88, 4, STARTED)
    report = judge(with_job(made, Job(3).raises(2, "KeyError", "'x'", 10.0).complains([0, 1], 10.2)))
    assert [(found.code, found.role) for found in report.findings[:2]] == [
        ("ERR001", "cause"),
        ("COL002", "consequence"),
    ]


def test_recorded_calls_go_before_the_words_of_those_who_waited() -> None:
    made = Made(3).together().call([0, 1], "all_reduce", 88, 4, STARTED)
    job = Job(3).complains([0, 1], 10.2).terminates([2], 10.5)
    assert [found.code for found in judge(with_job(made, job)).findings] == ["COL002"]


def test_a_time_out_of_all_is_told_once() -> None:
    made = Made(3).together().call(range(3), "all_reduce", 88, 4, STARTED)
    job = Job(3)
    for rank in range(3):
        job.dies(rank, 6, 10.0).says_example(rank, "nccl-timed-out")
    found = judge(with_job(made, job)).findings
    assert [(each.code, each.details.get("kind"), each.severity) for each in found] == [
        ("COL005", "together", "error")
    ]


def test_one_rank_alone_tells_nothing() -> None:
    report = judge(Made(1).together())
    assert report.verdict.status == "unknown"
    assert "single rank" in next(row.reason or "" for row in report.checks if row.id == "recorder.calls")


def test_jobs_without_recorded_calls_are_not_judged_by_them() -> None:
    report = judge(Job(2).raises(1, "KeyError", "'x'", 3.0).evidence())
    assert {row.status for row in report.checks if row.id.startswith("recorder.")} == {"skipped"}


@pytest.mark.unmeasured
def test_many_ranks_are_matched_in_a_second() -> None:
    made = Made(1).together([("all_reduce", 10 + n % 5) for n in range(200)])
    whole = made.call([0], "all_reduce", 88, 201, STARTED).log()
    row = whole.ranks[0]
    short = dataclasses.replace(
        row,
        calls=row.calls.part(0, 200),
        sequences=row.sequences.part(0, 200),
        states=row.states.part(0, 200),
    )
    ranks = [dataclasses.replace(short if rank == 9_999 else row, rank=rank) for rank in range(16_384)]
    log = dataclasses.replace(whole, ranks=tuple(ranks), world=16_384)
    began = time.process_time()
    found = first(Evidence(launch=Launch("analyze", world_size=16_384), calls=(log,)))
    assert time.process_time() - began < 10
    assert (found.code, str(found.ranks)) == ("COL002", "9999")


def test_a_process_record_alone_changes_nothing() -> None:
    made = Made(2).together()
    evidence = Evidence(
        launch=Launch("analyze", world_size=2),
        calls=(made.log(),),
        processes=tuple(
            ProcessRecord(10 + rank, rank=rank, exit_code=0, clean_end=True) for rank in range(2)
        ),
    )
    assert judge(evidence).findings == ()


def test_the_rank_that_is_furthest_behind_is_told_first() -> None:
    made = Made(4)
    for number in range(1, 6):
        made.call(
            [0, 3] if number > 4 else [0, 2, 3] if number > 2 else range(4),
            "all_reduce",
            40,
            number,
            SCHEDULED,
        )
    found = first(made)
    assert (found.code, str(found.ranks), found.details["sequence"]) == ("COL002", "1", 3)
