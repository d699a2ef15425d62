"""What torch's recorder adds to looks at ranks that stand still, and what it must not change."""

from __future__ import annotations

from dataclasses import replace

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.standstill import Recorded, Recorder, Stand
from ddpdoctor.judge import Finding
from tests.checks.standing import at, backward, collective, forward, gone, judge, proved, stand

BUCKET = Recorded("all_reduce", 11, "0", RankSet.span(4), 1_081_800, "float32", "scheduled", own=False)
NEXT = replace(BUCKET, sequence=12, elements=500)


def with_recorder(standing: Stand, *opened: Recorded, problem: str | None = None) -> Stand:
    return replace(standing, recorder=Recorder(problem, opened))


def texts(found: Finding | None) -> list[str]:
    assert found is not None
    return [each.text for each in found.evidence if each.kind == "recorder"]


def sleeping(*opened: Recorded, told: Recorded | None = BUCKET) -> list[Stand]:
    """Rank 3 sleeps while the others wait in backward."""
    waiting = [with_recorder(backward(rank, 3, 20), *([told] if told else []), NEXT) for rank in range(3)]
    return [*waiting, with_recorder(stand(3, forward(3, 18), line=19), *opened)]


def test_the_bucket_in_which_ranks_wait_is_named() -> None:
    found = judge(sleeping(), still=30.0, stage="suspected")
    assert found is not None
    assert found.code == "COL009"
    assert found.ranks == RankSet([3])
    where = "in bucket all_reduce #11 of 1,081,800 float32 values (train.py:20"
    assert f"Ranks 0-2 wait in the backward pass of DistributedDataParallel, {where}" in found.message
    told, bucket = texts(found)
    assert "issued from C++" in told
    assert bucket == (
        "wait in the reducer's bucket all_reduce #11 of 1,081,800 float32 values (scheduled); 1 collective after it "
        "has not completed either"
    )
    assert [each.ranks for each in found.evidence if each.text == bucket] == [RankSet.span(3)]


def test_what_may_be_a_call_of_the_program_is_no_bucket() -> None:
    for doubtful in (replace(BUCKET, own=None), replace(BUCKET, own=True), replace(BUCKET, op="broadcast")):
        found = judge(sleeping(told=doubtful), still=30.0, stage="suspected")
        assert found is not None
        assert "bucket" not in found.message


def test_a_collective_of_another_group_is_no_bucket() -> None:
    other = replace(BUCKET, group="1", members=RankSet([0, 1]), sequence=4)
    stands = [
        with_recorder(each, other, *(each.recorder.open if each.recorder else ())) for each in sleeping()
    ]
    found = judge(stands, still=30.0, stage="suspected")
    assert found is not None
    assert "#11" in found.message


def test_ranks_in_different_buckets_are_told_apart() -> None:
    stands = sleeping()
    stands[1] = with_recorder(stands[1], NEXT)
    found = judge(stands, still=30.0, stage="suspected")
    assert found is not None
    assert "bucket" not in found.message
    assert [text.partition(" (")[0] for text in texts(found)[1:]] == [
        "wait in the reducer's bucket all_reduce #11 of 1,081,800 float32 values",
        "waits in the reducer's bucket all_reduce #12 of 500 float32 values",
    ]


def test_who_told_nothing_is_said_with_the_reason() -> None:
    stands = sleeping()
    stands[2] = with_recorder(stands[2], problem="it did not respond within 2 s")
    stands[3] = replace(stands[3], recorder=None)
    found = judge(stands, still=30.0, stage="suspected")
    assert found is not None
    assert "bucket" not in found.message  # of rank 2 nobody knows
    said = {each.text: each.ranks for each in found.evidence if each.kind == "recorder"}
    assert said["no Flight Recorder data: it did not respond within 2 s"] == RankSet([2])
    assert said["no Flight Recorder data: it was not queried, on another node"] == RankSet([3])


def test_a_look_without_recorders_says_nothing_of_them() -> None:
    stands = [replace(each, recorder=None) for each in sleeping()]
    assert texts(judge(stands, still=30.0, stage="suspected")) == []


def test_who_is_gone_is_not_asked() -> None:
    stands = [with_recorder(backward(rank, 3, 20), BUCKET) for rank in range(3)]
    found = proved([*stands, gone(3, forward(2, 18))])
    assert found.code == "COL008"
    assert all("no Flight Recorder data" not in text for text in texts(found))
    assert "bucket all_reduce #11" in found.message


def test_the_verdict_is_the_same_with_and_without() -> None:
    """The recorder of gloo lacks too much to judge by: it adds names, and takes away what is over."""
    with_it = judge(sleeping(), still=30.0, stage="suspected")
    without = judge([replace(each, recorder=None) for each in sleeping()], still=30.0, stage="suspected")
    assert with_it is not None
    assert without is not None
    assert (with_it.code, with_it.ranks, with_it.where) == (without.code, without.ranks, without.where)


def test_a_call_that_is_over_needs_nobody() -> None:
    """It has not come back yet, though the data is there."""
    calls = [collective("all_reduce", 8, 20) for _ in range(3)]
    stands = [stand(rank, call) for rank, call in enumerate(calls)]
    missing = stand(3, collective("barrier", 8, 30))
    assert judge([*stands, missing]) is not None
    done = [
        replace(each, call=replace(each.call, over=True)) if each.call else each
        for each in [*stands, missing]
    ]
    assert judge(done) is None


def test_asynchronous_calls_that_are_over_are_not_waited_for() -> None:
    """Two were asked for, and the line waits for one of them: the recorder tells which it cannot be."""

    def waiting(rank: int, *, over: bool | None) -> Stand:
        first = replace(collective("all_reduce", 1, 10, asynchronous=True), returned=True, over=over)
        second = replace(collective("all_reduce", 2, 11, asynchronous=True), returned=True, over=False)
        line = at(12, source="work.wait()")
        return replace(stand(rank, first, second, frames=(line,)), call=None, recent=(first, second))

    others = [waiting(rank, over=True) for rank in range(3)]
    behind = stand(3, collective("all_reduce", 1, 10), line=40)
    found = judge([*others, behind], still=30.0, stage="suspected")
    assert found is not None
    assert found.ranks == RankSet([3])
    assert "all_reduce #2" in found.message
