"""Ranks that SIGHUP ended: one alone was sent it, all of them lost their terminal."""

from __future__ import annotations

import pytest

from ddpdoctor.evidence.job import ProcessRecord
from tests.checks.jobs import Job, at, judge


@pytest.mark.parametrize(
    "job",
    [
        Job(2).dies(1, 1).complains([0]),
        Job(2).dies(1, 1).terminates([0]),
        Job(4).dies(2, 1).complains([0, 1]).terminates([3]),
        Job(2).dies(1, 1, signal_sender="pid 17 (bash)").complains([0]),
        Job(2).exits(1, 129, how=None).complains([0]),
        Job(2).dies(1, 1),
        Job(2).dies(0, 1, signal_sender="itself").dies(1, 1, signal_sender="itself"),
    ],
    ids=[
        "peers complain",
        "peers are ended",
        "both",
        "sender",
        "behind a shell",
        "the other ended well",
        "all by themselves",
    ],
)
def test_some_ranks_that_a_hangup_ended_are_named(job: Job) -> None:
    findings, verdict, _ = judge(job)
    assert (verdict.status, verdict.code) == ("problems", "ERR005")
    assert str(findings[0].ranks) in ("1", "2", "0-1")
    assert "129" in findings[0].message or "SIGHUP" in findings[0].message


@pytest.mark.parametrize(
    "job",
    [
        Job(1).dies(0, 1),
        Job(2).dies(0, 1).dies(1, 1),
        Job(2).dies(0, 1).dies(1, 1, 10.4),
        Job(2, exit_code=None, end={"signal": 1}).dies(0, 1).terminates([1]),
        Job(2).dies(0, 1).terminates([1]).says(None, "W1120 10:01:07.310000 17912 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 17920 closing signal SIGHUP"),
        Job(1).exits(0, 129, how=None),
    ],
    ids=["one rank", "all", "all, later", "the launcher too", "the launcher says so", "behind a shell"],
)  # fmt: skip
def test_a_job_whose_terminal_was_closed_is_told_so(job: Job) -> None:
    _, verdict, _ = judge(job)
    assert (verdict.status, verdict.code) == ("problems", "ENV012")


def test_a_command_without_ranks_that_a_hangup_ended_is_told_so() -> None:
    job = Job(0, nproc=1, exit_code=None, end={"signal": 1})
    job.extra.append(ProcessRecord(50, role="other", host="node-a", started=at(0), ended=at(9), signal=1))
    findings, verdict, _ = judge(job)
    assert (verdict.status, verdict.code) == ("problems", "ENV012")
    assert "SIGHUP" in findings[0].message


def test_a_rank_that_raised_before_the_hangup_stays_the_cause() -> None:
    _, verdict, _ = judge(Job(2).raises(0, "ValueError", "x", 5).dies(1, 1, 8))
    assert verdict.code == "ERR001"
