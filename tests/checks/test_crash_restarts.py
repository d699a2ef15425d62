"""Attempts after a restart that cannot meet: ranks read addresses which an earlier attempt left in torchrun's store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor_checks.job.hangs.progress import judge_look
from ddpdoctor_checks.job.hangs.reading import INIT
from tests.checks.jobs import Job, cause_of, join_attempts
from tests.checks.standing import collective, look, stand

REFUSED = (
    "Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:152] timed out connecting: "
    "SO_ERROR: Connection refused, remote=[127.0.0.1]:11697$0"
)
MEETS = (
    Frame("/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 1899, INIT),
    Frame("train.py", 3, "<module>", "dist.init_process_group()"),
)


def restarted(attempt: int, shared: str | None = "True") -> Job:
    job = Job(2, attempt=attempt)
    for rank in range(2):
        job.set(rank, variables={"TORCHELASTIC_USE_AGENT_STORE": shared} if shared else {})
    return job


def failing() -> Job:
    return Job(2).raises(1, "ValueError", "only at first").complains([0])


@pytest.mark.parametrize(
    ("shared", "frames", "told"),
    [("True", MEETS, True), ("False", MEETS, False), (None, MEETS, False), ("True", MEETS[1:], False)],
    ids=["shared", "not shared", "not known", "elsewhere"],
)
def test_attempts_that_could_not_meet_point_at_the_store_that_they_share(
    shared: str | None, frames: tuple[Frame, ...], told: bool
) -> None:
    later = [
        restarted(attempt, shared).raises(0, "RuntimeError", REFUSED, frames=frames).terminates([1])
        for attempt in (1, 2)
    ]
    finding = cause_of(join_attempts(failing(), *later))
    assert (finding.code, finding.ranks, finding.details["attempt"]) == ("ERR001", RankSet([1]), 0)
    assert (
        any(item.text.startswith("attempts 1 and 2 could not connect") for item in finding.evidence) is told
    )
    assert any("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in (fix.command or "") for fix in finding.fix) is told


@pytest.mark.parametrize(("attempt", "told"), [(1, True), (0, False)])
def test_a_hang_in_the_meeting_after_a_restart_does_too(attempt: int, told: bool) -> None:
    call = collective(INIT, 1, 3, RankSet([0, 1]))
    stands = [
        replace(stand(rank, call, still_s=400.0), pid=1000 + rank + 100_000 * attempt) for rank in range(2)
    ]
    job = restarted(attempt).evidence()
    found = judge_look(replace(job, standstills=(look(stands, still=400.0, stage="confirmed"),)))
    assert found is not None
    assert found.code == "COL005"
    assert ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in str(found.fix[0].command)) is told
