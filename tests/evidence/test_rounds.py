"""Attempts of an elastic job that torchrun's own count does not tell apart: a node joined."""

from __future__ import annotations

from dataclasses import replace

from ddpdoctor.evidence import Evidence, Launch
from ddpdoctor.evidence.job import ExceptionRecord, JobEnd, Moment, ProcessRecord
from ddpdoctor.evidence.job_ranks import describe_ranks
from ddpdoctor.evidence.rounds import number_rounds, tell_rounds

SECOND = 10**9


def rank(
    pid: int,
    number: int,
    world: int,
    span: tuple[int, int],
    *,
    node: int = 0,
    attempt: int = 0,
    local: int = 0,
) -> ProcessRecord:
    begin, end = (Moment(at * SECOND, at * SECOND) for at in span)
    return ProcessRecord(
        pid, node, f"host-{node}", parent=10 + node, rank=number, local_rank=local, world_size=world, attempt=attempt,
        started=begin, ended=end, variables={"GROUP_RANK": str(node)},
    )  # fmt: skip


ALONE = rank(100, 0, 1, (0, 10))
AGAIN = rank(101, 1, 2, (11, 30))
JOINED = rank(200, 0, 2, (11, 30), node=1)


def numbers(*processes: ProcessRecord) -> dict[int, int]:
    return {pid: number for (_, pid), number in tell_rounds(processes).items()}


def test_a_node_that_joins_begins_a_new_attempt() -> None:
    assert numbers(ALONE, AGAIN, JOINED) == {100: 0, 101: 1, 200: 1}
    assert numbers(JOINED, AGAIN, ALONE) == {100: 0, 101: 1, 200: 1}
    failed = [replace(each, pid=each.pid + 1000, attempt=1) for each in (AGAIN, JOINED)]
    assert numbers(ALONE, AGAIN, JOINED, *failed) == {100: 0, 101: 1, 200: 1, 1101: 2, 1200: 2}


def test_a_world_of_the_same_size_is_told_by_who_ran_before_on_the_same_node() -> None:
    """One node left and another came in its place."""
    assert numbers(rank(1, 0, 2, (0, 10)), rank(2, 1, 2, (0, 10), node=1), rank(3, 0, 2, (11, 20))) == {
        1: 0,
        2: 0,
        3: 1,
    }


def test_what_torchrun_counts_itself_stays_as_it_is() -> None:
    attempts = [
        rank(1 + 2 * number + local, local, 2, (10 * number, 10 * number + 9), attempt=number, local=local)
        for number in range(3)
        for local in range(2)
    ]
    assert numbers(*attempts) == {}
    twice = [rank(1, 0, 2, (0, 20)), rank(2, 0, 2, (5, 20), node=0)]
    assert numbers(*twice) == {}, "two that live at once claim one place: that is for ENV002 to say"


def test_all_that_was_seen_of_a_rank_goes_with_it() -> None:
    processes = (ALONE, AGAIN, JOINED)
    evidence = Evidence(
        launch=Launch(command="run"),
        processes=processes,
        ranks=describe_ranks(processes),
        exceptions=(ExceptionRecord(101, "ValueError", "late"),),
        job=(JobEnd(exit_code=1),),
    )
    told = number_rounds(evidence)
    assert [each.attempt for each in told.processes] == [0, 1, 1]
    assert [each.attempt for each in told.exceptions] == [1]
    assert [(each.node, each.pid) for each in told.ranks] == [(1, 200), (0, 101)]
    assert told.job[0].restarts == 1
    assert number_rounds(replace(evidence, processes=(AGAIN, JOINED))).processes == (AGAIN, JOINED)


def test_ranks_that_run_side_by_side_are_of_one_attempt_though_their_worlds_differ() -> None:
    """One was started with a wrong WORLD_SIZE: no second attempt, but the mistake."""
    assert numbers(rank(1, 0, 3, (0, 10)), rank(2, 1, 2, (1, 10), local=1)) == {}
    assert numbers(rank(1, 0, 3, (0, 30)), rank(2, 1, 2, (1, 30), node=1)) == {}
