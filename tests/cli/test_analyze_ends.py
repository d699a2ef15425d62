"""``analyze`` says healthy only of a job that it saw end well."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ddpdoctor_checks
from ddpdoctor.plugins import CHECKS, Entry
from tests.cli.conftest import Run

BANNER = (
    "W0102 10:00:00.000000 4711 torch/distributed/run.py:874] Setting OMP_NUM_THREADS environment variable for each "
    "process to be 1 in default, to avoid your system being overloaded\n"
)
DONE = (
    "I0102 10:09:00.000000 4711 torch/distributed/elastic/agent/server/api.py:932] [default] worker group successfully "
    "finished. Waiting 300 seconds for other agents to finish.\n"
)
WARN = "node1:123:456 [0] NCCL WARN NET/Socket : something that no table knows\n"


@pytest.fixture(autouse=True)
def builtin(entries: list[Entry]) -> None:
    entries[:] = [Entry("ddpdoctor", CHECKS, "builtin", lambda: ddpdoctor_checks.register)]


def judge(run: Run, tmp_path: Path, text: str) -> tuple[int, str, str | None, str]:
    (tmp_path / "train.log").write_text(text)
    result = run("analyze", "train.log", "--json", "report.json")
    found = json.loads((tmp_path / "report.json").read_text())["verdict"]
    return result.code, found["status"], found["code"], result.out


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (BANNER + WARN, "train.log:2: node1:123:456 [0] NCCL WARN NET/Socket"),
        (BANNER + WARN + "epoch 1\n" * 4000, "train.log:2: node1:123:456 [0] NCCL WARN"),
        (BANNER + "epoch 1\nFloating point exception (core dumped)\n", "train.log:3: Floating point"),
        (BANNER + "srun: error: node1: task 3: Exited with exit code 1\n", "task 3: Exited with exit code 1"),
        (BANNER + "ERROR: the frobnicator is gone\nepoch 2\n", "ERROR: the frobnicator is gone"),
        (BANNER + "my.module.Error: it broke\n", "my.module.Error: it broke"),
        (BANNER + "epoch 1 loss 0.25\nepoch 2 lo", "train.log:3: epoch 2 lo"),
        (BANNER + "epoch 1 loss 0.25\ndone\n", "train.log:3: done"),
        (BANNER, "train.log:1:"),
        (DONE + WARN, "NCCL WARN"),
    ],
)
def test_what_no_check_knows_is_not_called_healthy_and_its_lines_are_shown(
    run: Run, tmp_path: Path, text: str, shown: str
) -> None:
    code, status, found, out = judge(run, tmp_path, text)
    assert (code, status, found) == (3, "unknown", None)
    assert "healthy" not in out
    assert shown in " ".join(out.split())


@pytest.mark.parametrize("metric", ["", "eval error: 0.25\n", "done with 0 errors, exit code 0\n"])
def test_a_job_whose_agent_said_that_all_ended_well_is_healthy(run: Run, tmp_path: Path, metric: str) -> None:
    assert judge(run, tmp_path, BANNER + "epoch 1\n" + metric + DONE)[:3] == (0, "healthy", None)


def test_one_agent_of_two_that_ended_well_is_not_the_job(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(BANNER + DONE)
    (tmp_path / "b.log").write_text(BANNER.replace("4711", "4712"))
    assert run("analyze", "a.log", "b.log").code == 3


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd: error: Detected 1 oom_kill event in StepId=14.batch. Some of the step tasks have been OOM Killed.",
        "slurmstepd-node1: error: Detected 1 oom_kill event in StepId=14.batch. Some of the step tasks have been OOM Killed.",
        "[2026-01-02T10:00:00.000] error: Detected 2 oom_kill events in StepId=14.0. Some of the step tasks have been OOM Killed.",
        "slurmstepd: error: StepId=14.batch exceeded memory limit (8421376 > 8388608), being killed",
        "slurmstepd: error: Step 14.0 exceeded memory limit (8421376 > 8388608), being killed",
        "slurmstepd-node1: error: Job 14 exceeded memory limit (8421376 > 8388608), being killed",
        "srun: error: node1: task 3: Out Of Memory",
        "srun: error: node[1-2]: tasks 0-3: Out Of Memory",
    ],
)
@pytest.mark.parametrize("before", ["", BANNER + "epoch 1\n"])
def test_a_kill_for_memory_that_the_scheduler_reports_is_named(
    run: Run, tmp_path: Path, line: str, before: str
) -> None:
    assert judge(run, tmp_path, before + line + "\n")[:3] == (1, "problems", "ERR002")
