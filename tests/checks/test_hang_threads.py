"""Standstills that follow from a failure: a thread of a rank that has died, a meeting that failed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.evidence import Evidence, Launch
from ddpdoctor.evidence.job import ExceptionRecord, Moment, ProcessRecord
from ddpdoctor.evidence.standstill import Standstill
from ddpdoctor_checks.job.hangs.progress import judge_look

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


GAI = ("torch.distributed.DistNetworkError", "gai error: Name or service not known")
RAISED = ("RuntimeError", "DDP expects same model across all ranks, but rank 1 has 3 params")
WAITED = ("RuntimeError", "Timed out waiting 1800000ms for recv operation to complete")


@pytest.mark.parametrize(
    ("op", "stage", "failed", "role"),
    [
        ("init_process_group", "suspected", GAI, "consequence"),
        ("init_process_group", "suspected", None, "cause"),
        ("init_process_group", "confirmed", WAITED, "cause"),
        ("all_reduce", "suspected", WAITED, "cause"),
        ("all_reduce", "confirmed", RAISED, "consequence"),
        ("DistributedDataParallel", "confirmed", RAISED, "consequence"),
        ("DistributedDataParallel", "confirmed", WAITED, "cause"),
    ],
)
def test_ranks_that_waited_together_and_then_failed_have_said_why(
    op: str, stage: str, failed: tuple[str, str] | None, role: str
) -> None:
    """Those that only gave up waiting have not."""
    call = collective(op, 1, 7, 2)
    if op[0] in "iD":
        call = replace(call, group="", default_group=False, index=1)
    stands = tuple(stand(rank, call, still_s=12.0) for rank in range(2))
    look = Standstill(Moment(1, 1), 12.0, 12.0, stands, 2, 0.7, stage)
    error = ExceptionRecord(pid=1000, type=failed[0], message=failed[1], rank=0) if failed else None
    process = ProcessRecord(pid=1000, role="rank", rank=0, world_size=2, exit_code=1)
    found = judge_look(
        Evidence(
            launch=Launch(command="run"),
            standstills=(look,),
            exceptions=(error,) if error else (),
            processes=(process,) if error else (),
        )
    )
    assert found is not None
    assert (found.code, found.role, found.decisive) == ("COL005", role, role == "cause")
