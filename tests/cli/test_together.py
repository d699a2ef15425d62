"""`run` among the tasks of a job: where it keeps its run, what it says, and what it leaves to others."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

import pytest

from ddpdoctor.cli.running.together import Together, find_others
from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.job import JobEnd
from ddpdoctor.watch.commandline import Split
from ddpdoctor.watch.live.stillness import Exchange
from ddpdoctor.watch.rundir import make_run_directory
from ddpdoctor.watch.tasks.looks import TaskExchange

PROGRAM = Split((), (), ("python", "train.py"), is_command=True)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def become(monkeypatch: pytest.MonkeyPatch, number: int, **options: object) -> Together:
    step = {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}
    for name, value in {**step, "SLURM_PROCID": str(number)}.items():
        monkeypatch.setenv(name, value)
    return find_others(argparse.Namespace(**options), PROGRAM)


@pytest.mark.parametrize("asked", [None, "kept"])
def test_task_keeps_its_run_in_the_directory_of_its_job(
    place: Path, monkeypatch: pytest.MonkeyPatch, asked: str | None
) -> None:
    together = become(monkeypatch, 1, run_dir=asked)
    assert together.is_one_of_many
    assert together.run_directory == str(place / (asked or "ddpdoctor-runs") / "slurm-5.0" / "task-1")
    directory = make_run_directory(together.run_directory)
    together.begin()
    assert str(directory.path) == together.run_directory
    assert together.shown_in(directory).path == directory.path.parent
    assert isinstance(together.make_exchange(directory), TaskExchange)
    directory.remove_private()


def test_command_that_was_started_alone_is_as_ever(place: Path) -> None:
    together = find_others(argparse.Namespace(), PROGRAM)
    evidence = Evidence()
    assert (together.is_one_of_many, together.run_directory) == (False, None)
    assert together.join(evidence, failed=True) is evidence
    before = signal.getsignal(signal.SIGTERM)
    together.outlive_requests()
    assert signal.getsignal(signal.SIGTERM) is before
    together.end()
    assert list(place.iterdir()) == []
    assert Exchange(place).leads()


def test_directory_that_cannot_be_shared_is_said_once(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "ddpdoctor-runs" / "slurm-5.0").mkdir(parents=True)
    (place / "ddpdoctor-runs" / "slurm-5.0").chmod(0o777)
    tasks = [become(monkeypatch, number) for number in (0, 1)]
    assert [each.run_directory for each in tasks] == [None, None]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "the 2 tasks of srun cannot share a run directory" in said[0]
    assert "other users may write to" in said[0]


def test_second_run_is_not_made_by_one_of_several_tasks(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (0, 1):
        become(monkeypatch, number, rerun="auto")
    assert capsys.readouterr().err == "ddpdoctor: --rerun auto has no effect under srun\n"


def test_one_task_judges_and_the_other_says_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = [become(monkeypatch, number) for number in (0, 1)]
    for each in tasks:
        each.begin()
    ended = Evidence(job=(JobEnd(0),))
    tasks[1].tell("stall")
    assert tasks[0].join(ended, failed=False) is None, "the other one lives"
    joined = tasks[1].join(ended, failed=False)
    assert joined is not None
    assert joined.job == (JobEnd(0, launcher="srun"),)
    tasks[1].end()
    assert (place / "ddpdoctor-runs/slurm-5.0/done").exists()
    assert capsys.readouterr().err == ""
