"""Processes beside the ranks: what a driver says of its ranks, and what follows when ddpdoctor ends a job."""

from __future__ import annotations

from dataclasses import replace

from ddpdoctor.evidence import Evidence, Frame, Launch, RankSet
from ddpdoctor.evidence.job import ExceptionRecord, JobEnd, Moment, ProcessRecord
from tests.checks.jobs import Job, cause_of, judge
from tests.checks.standing import look, stand

SNIPPET = """\
[Rank {rank} Error Snippet]:
Traceback (most recent call last):
  File "/home/me/train.py", line {line}, in train
    step()
{error}
"""
CLOSED = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:1"


def drive(*snippets: str) -> Evidence:
    message = "Training failed due to worker errors:\n" + "".join(snippets)
    frames = (Frame("rays.py", 25, "<module>", ").fit()"),)
    return Evidence(
        launch=Launch(command="run"),
        processes=(ProcessRecord(7, role="other", exit_code=1),),
        exceptions=(ExceptionRecord(7, "ray.train.WorkerGroupError", message, frames),),
        job=(JobEnd(exit_code=1, launcher="python"),),
    )


def test_the_rank_that_an_error_of_ray_quotes_is_named() -> None:
    finding = cause_of(drive(SNIPPET.format(rank=1, line=14, error="ValueError: bad batch")))
    assert (finding.code, finding.ranks) == ("ERR001", RankSet([1]))
    assert (finding.where[0].file, finding.where[0].line) == ("/home/me/train.py", 14)


def test_of_several_the_one_that_does_not_complain_of_another_is() -> None:
    lost = SNIPPET.format(rank="0,2", line=28, error=CLOSED)
    own = SNIPPET.format(rank=1, line=14, error="ValueError: bad batch")
    for order in ((lost, own), (own, lost)):
        finding = cause_of(drive(*order))
        assert (finding.ranks, finding.where[0].line) == (RankSet([1]), 14)
    both = SNIPPET.format(rank="0,1", line=14, error="ValueError: bad batch")
    assert cause_of(drive(both)).ranks == RankSet([0, 1])


def test_what_fails_once_ddpdoctor_ends_a_job_is_no_failure_of_its_own() -> None:
    job = Job(2).dies(0, 9, 60.0)
    driver = job.process(0, pid=5, role="other", signal=6, ended=job.when(0, 61.0))
    job.extra.append(replace(driver, rank=None))
    evidence = job.evidence()
    at = job.when(0, 50.0)
    stopped = replace(look([stand(0), stand(1)]), at=Moment(at.wall_ns, at.mono_ns), stopped=True)
    ended = tuple(replace(end, stopped=True) for end in evidence.job)
    assert [f.code for f in judge(replace(evidence, job=ended))[0]] == ["ERR005"]
    assert [f.code for f in judge(replace(evidence, job=ended, standstills=(stopped,)))[0]] == []
