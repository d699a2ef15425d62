"""Standstills that follow from a failure: a thread of a rank that has died, a meeting that failed."""

from __future__ import annotations

import pytest

from ddpdoctor.evidence import Evidence, Launch
from ddpdoctor.evidence.job import ExceptionRecord, Moment
from ddpdoctor.evidence.standstill import Standstill
from ddpdoctor_checks.hangs.findings import judge_look

from .standing import at, collective, stand


@pytest.mark.parametrize(
    ("kind", "rank", "role"),
    [("thread", 1, "consequence"), ("thread", 0, "cause"), ("handled", 1, "cause")],
    ids=["its own", "another rank's", "no thread"],
)
def test_the_death_of_a_thread_comes_before_the_stall(kind: str, rank: int, role: str) -> None:
    stands = (
        stand(0, collective("all_reduce", 6, 13, 2), still_s=20.0),
        stand(
            1,
            collective("all_reduce", 5, 13, 2),
            line=12,
            frames=(at(12, source="x = q.get()"),),
            still_s=20.0,
        ),
    )
    look = Standstill(Moment(1, 1), 40.0, 20.0, stands, 2, 0.7, "confirmed")
    error = ExceptionRecord(
        pid=1001, type="ValueError", message="shard 5 is truncated", rank=rank, kind=kind, thread="Thread-1"
    )
    found = judge_look(Evidence(launch=Launch(command="run"), standstills=(look,), exceptions=(error,)))
    assert found is not None
    assert (found.code, list(found.ranks), found.role) == ("COL009", [1], role)
    assert found.decisive is (role == "cause")


@pytest.mark.parametrize(
    ("op", "stage", "failed", "role"),
    [
        ("init_process_group", "suspected", True, "consequence"),
        ("init_process_group", "suspected", False, "cause"),
        ("init_process_group", "confirmed", True, "cause"),
        ("all_reduce", "suspected", True, "cause"),
    ],
)
def test_a_meeting_that_failed_tells_why_ranks_had_waited(
    op: str, stage: str, failed: bool, role: str
) -> None:
    stands = tuple(stand(rank, collective(op, 1, 7, 2), still_s=12.0) for rank in range(2))
    look = Standstill(Moment(1, 1), 12.0, 12.0, stands, 2, 0.7, stage)
    error = ExceptionRecord(pid=1000, type="torch.distributed.DistNetworkError", message="gai error", rank=0)
    found = judge_look(
        Evidence(launch=Launch(command="run"), standstills=(look,), exceptions=(error,) if failed else ())
    )
    assert found is not None
    assert (found.code, found.role, found.decisive) == ("COL005", role, role == "cause")
