"""Why Slurm ended a job, as its controller says; `tests/slurm` asks a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.evidence import Evidence, Launch
from ddpdoctor.evidence.job import JobEnd
from ddpdoctor.gather.slurm import ask_why_ended, read_why_ended
from ddpdoctor.report.summary import describe_stop

JOB = "JobId=1 JobName=job.sh JobState={state} Reason=None Requeue=1 Restarts=0 PreemptTime={when} SuspendTime=None"


@pytest.mark.parametrize(
    ("state", "when", "why"),
    [
        ("RUNNING", "2026-11-23T06:20:20", "Slurm preempted the job"),  # within its GraceTime
        ("COMPLETING", "2026-11-23T06:20:20", "Slurm preempted the job"),
        ("RUNNING", "None", None),
        ("TIMEOUT", "None", "the job's time limit in Slurm was reached"),
        ("CANCELLED", "None", "the job was canceled in Slurm"),
    ],
)
def test_the_answer_of_the_controller_is_read(state: str, when: str, why: str | None) -> None:
    assert read_why_ended(JOB.format(state=state, when=when)) == why


@pytest.mark.parametrize(("before", "told"), [("", True), ("0", True), ("1", False), ("none", False)])
def test_a_job_that_waits_to_be_started_again_is_told_by_its_count(before: str, told: bool) -> None:
    answer = "JobId=1 JobState=COMPLETING Reason=None Requeue=1 Restarts=1 ExitCode=0:0"
    assert (read_why_ended(answer, before) is not None) is told


@pytest.mark.parametrize("text", ["", "slurm_load_jobs error: Invalid job id specified", "=", "JobState"])
def test_another_answer_says_nothing(text: str) -> None:
    assert read_why_ended(text) is None


def test_it_is_asked_for_the_job_of_the_task_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "scontrol"
    tool.write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/asked\necho JobState=PREEMPTED\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert ask_why_ended({}) is None
    assert ask_why_ended({"SLURM_JOB_ID": "1; rm"}) is None
    assert not (tmp_path / "asked").exists()
    assert ask_why_ended({"SLURM_JOB_ID": "17"}) == "Slurm preempted the job"
    assert (tmp_path / "asked").read_text() == "show job -o 17\n"
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert ask_why_ended({"SLURM_JOB_ID": "17"}) is None


def test_the_headline_says_it() -> None:
    end = JobEnd(exit_code=143, interrupted="SIGTERM", ended_by="Slurm preempted the job")
    told = describe_stop(Evidence(launch=Launch(command="run"), job=(end,)))
    assert told == "stopped by SIGTERM: Slurm preempted the job"
