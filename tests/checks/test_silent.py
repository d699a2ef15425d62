"""Checks of what a job does wrong without anybody complaining, on made-up evidence."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest

from ddpdoctor.evidence import Evidence, Frame, Launch
from ddpdoctor.evidence.job import (
    ExceptionRecord,
    JobEnd,
    Milestone,
    Moment,
    ProcessRecord,
    TextMatch,
    UnwaitedWork,
)
from ddpdoctor.evidence.texts.matching import match_text
from ddpdoctor.judge import CannotLook, Finding, NotApplicable
from ddpdoctor_checks.job.silent.teardown import find_teardown
from ddpdoctor_checks.job.silent.unwaited import find_unwaited, left_unsent

AT, LATER = Moment(1_700_000_000_000_000_000, 5), Moment(1_700_000_001_000_000_000, 1_000_000_005)
LINE = (Frame("train.py", 12, "step", "dist.all_reduce(x, async_op=True)"), Frame("train.py", 40, "<module>"))


def make_work(**changes: Any) -> UnwaitedWork:
    plain = UnwaitedWork(
        "all_reduce", begun=5, dropped=5, first=2, last=6, calls=9, device="cpu", frames=LINE
    )
    return dataclasses.replace(plain, **changes)


def make_rank(rank: int, *names: str, **changes: Any) -> ProcessRecord:
    frames = (Frame("train.py", 50, "main", "dist.destroy_process_group()"),)
    reached = names or ("start", "init", "destroy", "end")
    plain = ProcessRecord(
        pid=100 + rank,
        rank=rank,
        backend="gloo",
        clean_end=True,
        exit_code=0,
        milestones=tuple(Milestone(name, AT, frames=frames if name == "destroy" else ()) for name in reached),
    )
    return dataclasses.replace(plain, **changes)


def make_job(*ranks: ProcessRecord, exit_code: int = 0, **more: Any) -> Evidence:
    return Evidence(
        launch=Launch(command="run", world_size=len(ranks)),
        processes=ranks,
        job=(JobEnd(exit_code=exit_code),),
        **more,
    )


def find_work(*ranks: ProcessRecord, **more: Any) -> list[Finding]:
    return list(find_unwaited(make_job(*ranks, **more)))


def test_a_line_is_named_with_its_ranks_and_counts() -> None:
    (found,) = find_work(*(make_rank(rank, unwaited=(make_work(),)) for rank in range(3)), make_rank(3))
    assert list(found.ranks) == [0, 1, 2]
    assert (found.where[0].file, found.where[0].line, found.where[0].role) == ("train.py", 12, "culprit")
    assert "5 of 5 times" in found.message
    assert (found.severity, found.confidence, found.decisive) == ("warning", "high", False)
    assert found.details["dropped"] == 5


@pytest.mark.parametrize(("begun", "dropped", "kept", "told"), [
    (4, 1, 0, False), (2, 1, 0, False), (2, 0, 1, False), (1, 1, 0, True), (1, 0, 1, True), (3, 1, 1, True),
    (5, 0, 0, False),
])  # fmt: skip
def test_a_line_that_is_mostly_waited_for_is_silent(begun: int, dropped: int, kept: int, told: bool) -> None:
    work = make_work(begun=begun, dropped=dropped, kept=kept)
    assert bool(find_work(make_rank(0, unwaited=(work,)))) is told


def test_on_accelerators_it_is_only_a_remark() -> None:
    (found,) = find_work(make_rank(0, unwaited=(make_work(device="cuda"),)))
    assert (found.severity, found.confidence) == ("info", "low")


@pytest.mark.parametrize(
    "changes",
    [
        {"exit_code": 1},
        {"signal": 15, "exit_code": None, "clean_end": False},
        {"signal": 9, "exit_code": None},
        {"exit_code": None, "clean_end": False},
    ],
    ids=["status", "signal", "signal after its end", "unknown"],
)
def test_a_rank_that_failed_had_no_chance_to_wait(changes: dict[str, Any]) -> None:
    assert not find_work(make_rank(0, unwaited=(make_work(),), **changes), exit_code=1)


def test_an_exception_takes_a_program_out_of_the_way_to_its_wait() -> None:
    rank = make_rank(0, unwaited=(make_work(),), exit_code=None)
    raised = ExceptionRecord(pid=rank.pid, type="KeyError", message="'a'", rank=0)
    assert not find_work(rank, exit_code=1, exceptions=(raised,))


def test_an_abort_after_the_end_is_torch_s_own() -> None:
    assert find_work(make_rank(0, unwaited=(make_work(),), exit_code=None, signal=6), exit_code=1)


def test_lines_outside_the_user_s_code_are_not_judged() -> None:
    library = (Frame("/venv/lib/python3.11/site-packages/lib/comm.py", 3, "push"),)
    assert not find_work(make_rank(0, unwaited=(make_work(frames=library),)))


def test_who_waits_unseen_is_not_judged() -> None:
    with pytest.raises(CannotLook):
        find_work(make_rank(0, unwaited=(make_work(blind=True),)))


def lose_message(**changes: Any) -> Evidence:
    """Rank 0 left after an isend; rank 1 says that the connection was closed."""
    work = make_work(op="isend", begun=1, dropped=1, first=9, last=9, **changes)
    closed = ExceptionRecord(
        pid=101,
        type="RuntimeError",
        message="[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1. This is typically caused by a "
        "remote worker crashing.",
        rank=1,
        at=LATER,
        frames=(Frame("train.py", 70, "main", "dist.recv(x, 0)"),),
    )
    texts = tuple(
        TextMatch(
            entry=entry, text=closed.message, groups=groups, pid=101, rank=1, stream="exception", at=LATER
        )
        for entry, groups in match_text(closed.message)
    )
    return make_job(
        make_rank(0, unwaited=(work,), ended=AT),
        make_rank(1, exit_code=1, ended=LATER),
        exit_code=1,
        exceptions=(closed,),
        texts=texts,
    )


def test_a_message_that_was_never_sent_is_the_cause() -> None:
    evidence = lose_message()
    (found,) = find_unwaited(evidence)
    assert (found.severity, found.decisive, list(found.ranks), list(found.victims)) == (
        "error",
        True,
        [0],
        [1],
    )
    assert list(left_unsent(evidence)) == [0]


def test_what_was_followed_by_other_calls_did_not_lose_it() -> None:
    evidence = lose_message(calls=12)
    (found,) = find_unwaited(evidence)
    assert (found.severity, found.decisive, list(found.victims)) == ("warning", False, [])
    assert not left_unsent(evidence)


@pytest.mark.unmeasured
def test_many_ranks_are_judged_at_once() -> None:
    ranks = [make_rank(rank, unwaited=(make_work(), make_work(op="isend"))) for rank in range(16384)]
    evidence = make_job(*ranks)
    began = time.process_time()
    found = [*find_unwaited(evidence), *find_teardown(evidence)]
    assert time.process_time() - began < 5
    assert [len(each.ranks) for each in found] == [16384, 16384]
    assert len(found[0].evidence) < 20


NEVER = ("start", "init", "end")


def test_groups_destroyed_everywhere_are_fine() -> None:
    assert not list(find_teardown(make_job(make_rank(0), make_rank(1))))


def test_destroyed_on_some_ranks_only_is_a_warning_with_the_line() -> None:
    (found,) = find_teardown(make_job(make_rank(0), make_rank(1, *NEVER), make_rank(2, *NEVER)))
    assert list(found.ranks) == [1, 2]
    assert [(place.file, place.line) for place in found.where] == [("train.py", 50)]
    assert found.severity is None


@pytest.mark.parametrize(
    ("backend", "severities"), [("gloo", []), ("cpu:gloo,cuda:nccl", ["info"]), ("nccl", ["info"])]
)
def test_never_destroyed_is_a_remark_where_torch_itself_asks_for_it(
    backend: str, severities: list[str]
) -> None:
    found = list(find_teardown(make_job(*(make_rank(rank, *NEVER, backend=backend) for rank in range(2)))))
    assert [each.severity for each in found] == severities


def test_a_group_that_was_made_again_has_to_be_destroyed_again() -> None:
    again = make_rank(1, "start", "init", "destroy", "init", "end")
    (found,) = find_teardown(make_job(make_rank(0), again))
    assert list(found.ranks) == [1]


@pytest.mark.parametrize("evidence", [
    make_job(make_rank(0), make_rank(1, *NEVER, exit_code=1), exit_code=1),
    make_job(make_rank(0), make_rank(1, *NEVER), exit_code=1),
    make_job(make_rank(0, "start", "end"), make_rank(1, "start", "end")),
    make_job(),
])  # fmt: skip
def test_a_job_that_failed_or_made_no_group_is_not_judged(evidence: Evidence) -> None:
    with pytest.raises(NotApplicable):
        list(find_teardown(evidence))


@pytest.mark.parametrize(
    "changes",
    [{"job": ()}, {"job": (JobEnd(exit_code=0, stopped=True),)}, {"job": (JobEnd(exit_code=0, signal=15),)}],
    ids=["unknown", "ended by us", "killed"],
)
def test_a_job_that_is_not_known_to_have_ended_well_is_not_judged(changes: dict[str, Any]) -> None:
    evidence = dataclasses.replace(make_job(make_rank(0), make_rank(1, *NEVER)), **changes)
    with pytest.raises(NotApplicable, match="has no orderly teardown"):
        list(find_teardown(evidence))
