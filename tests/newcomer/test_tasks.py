"""The ten tasks of README.md beside this file are done with what is written there and on the pages that it names."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import ddpdoctor

ROOT = Path(__file__).parents[2]
TASKS = Path(__file__).with_name("README.md")
DEMOS = ROOT / "ddpdoctor" / "cli" / "demos"
LIMIT_S = 250


@dataclass(frozen=True, slots=True)
class Task:
    """One section of the file."""

    title: str
    pages: tuple[Path, ...]
    commands: tuple[str, ...]


def read_tasks() -> dict[int, Task]:
    tasks = {}
    for number, title, body in re.findall(
        r"^## (\d+)\. (.*)\n((?:(?!## ).*\n)*)", TASKS.read_text(), re.MULTILINE
    ):
        pages = re.findall(r"\]\(([^)#]+)", body.split("```")[0])
        (block,) = re.findall(r"```sh\n(.*?)```", body, re.DOTALL)
        tasks[int(number)] = Task(
            title, tuple((TASKS.parent / page).resolve() for page in pages), tuple(block.splitlines())
        )
    return tasks


READ = read_tasks()


@dataclass(frozen=True, slots=True)
class Desk:
    """A folder of the newcomer's own, with what is installed on the path."""

    folder: Path
    environment: dict[str, str]

    def take(self, demo: str) -> None:
        shutil.copy(DEMOS / demo / "train.py", self.folder)

    def type(self, number: int, **changes: str) -> list[subprocess.CompletedProcess[str]]:
        """Type the commands of a task, one after the other."""
        done = []
        for command in READ[number].commands:
            for word, value in changes.items():
                command = command.replace(word, value)
            done.append(self.run(command))
        return done

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """`pip` installs into a folder, offline and without what is there already; `ddpdoctor` is the tree's."""
    tools, installed, folder = tmp_path / "bin", tmp_path / "installed", tmp_path / "work"
    tools.mkdir()
    folder.mkdir()
    pip = f"-m pip install --quiet --no-deps --no-build-isolation --no-index --target {installed}"
    for name, call in (("ddpdoctor", '-m ddpdoctor "$@"'), ("pip", f'{pip} "${{@:2}}"')):
        (tools / name).write_text(f"#!/bin/bash\nexec {sys.executable} {call}\n")
        (tools / name).chmod(0o755)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("COV", "PYTEST"))}
    path = os.pathsep.join((str(tools), str(Path(sys.executable).parent), os.environ["PATH"]))
    more = {
        "PATH": path,
        "PYTHONPATH": str(installed),
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
    }
    return Desk(folder, kept | more | {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")})


@pytest.mark.parametrize("number", READ)
def test_the_pages_show_every_command_and_option_of_the_task(number: int) -> None:
    task = READ[number]
    shown = "\n".join(page.read_text(encoding="utf-8") for page in task.pages)
    for command in task.commands:
        words = shlex.split(command)
        if words[0] not in ("ddpdoctor", "pip"):
            continue
        asked = [" ".join(words[:2]), *(word for word in words[2:] if word.startswith("-"))]
        assert [each for each in asked if each not in shown] == [], f"{task.title}: {command}"


def test_there_are_ten() -> None:
    assert list(READ) == list(range(1, 11))


@pytest.mark.long
def test_1_install(desk: Desk) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE", "ddpdoctor", "checks"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, desk.folder / name)
    installed, version = desk.type(1)
    assert installed.returncode == 0, installed.stderr
    assert re.match(rf"ddpdoctor +{re.escape(ddpdoctor.__version__)} in ", version.stdout)
    assert "torch " in version.stdout


@pytest.mark.long
def test_2_find_the_hang(desk: Desk) -> None:
    desk.take("guarded-collective")
    (done,) = desk.type(2)
    assert done.returncode == 1
    assert "COL002 collective-missing" in done.stderr
    assert "Rank 0 waits in all_reduce #1 (train.py:7, log_loss)" in done.stderr


@pytest.mark.long
def test_3_find_the_silent_bug(desk: Desk) -> None:
    desk.take("bypassed-wrapper")
    (done,) = desk.type(3)
    assert done.returncode == 0
    assert "DDP005 wrapper-bypassed" in done.stderr


def test_4_add_it_to_ci(desk: Desk) -> None:
    desk.take("guarded-collective")
    (done,) = desk.type(4)
    assert done.returncode == 1
    assert done.stdout.startswith("::error file=train.py,line=7")
    (result,) = json.loads((desk.folder / "ddpdoctor.sarif").read_text())["runs"][0]["results"]
    assert result["ruleId"] == "COL002"
    assert "COL002" in Path(desk.environment["GITHUB_STEP_SUMMARY"]).read_text()


def test_5_read_the_log_of_a_dead_job(desk: Desk) -> None:
    case = ROOT / "tests" / "evidence" / "nccl" / "cuda-oom-one-rank-others-time-out"
    shutil.copy(case / "train.log", desk.folder)
    (done,) = desk.type(5)
    assert done.returncode == 1
    assert done.stdout.startswith("ddpdoctor ✖ ERR008 device-out-of-memory")
    assert "Rank 6 failed first" in done.stdout


def test_6_silence_a_finding(desk: Desk) -> None:
    desk.take("guarded-collective")
    loud, _, silent = desk.type(6)
    assert (loud.returncode, silent.returncode) == (1, 0)
    assert "1 finding suppressed: 1 by comment" in silent.stdout


def test_7_write_a_check(desk: Desk) -> None:
    (page,) = READ[7].pages
    text = page.read_text(encoding="utf-8")
    (project,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    check, test = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (desk.folder / "pyproject.toml").write_text(project)
    (desk.folder / "my_team.py").write_text(check)
    (desk.folder / "test_my_team.py").write_text(test)
    installed, listed, explained = desk.type(7)
    assert installed.returncode == 0, installed.stderr
    assert "memory-unequal [warning] Nodes have different amounts of memory (from my-team)" in " ".join(
        listed.stdout.split()
    )
    assert "the smallest one ends first" in explained.stdout
    tested = desk.run(f"{sys.executable} -m pytest -q -p no:cacheprovider test_my_team.py")
    assert tested.returncode == 0, tested.stdout
    assert "2 passed" in tested.stdout


@pytest.mark.long
def test_8_attach_to_a_hung_job(desk: Desk) -> None:
    desk.take("guarded-collective")
    job = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", "train.py"],
        cwd=desk.folder,
        env=desk.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + LIMIT_S
        (done,) = desk.type(8, PID=str(job.pid))
        while (
            done.returncode != 1 and time.monotonic() < end
        ):  # its ranks have not started yet, or make progress
            time.sleep(1)
            (done,) = desk.type(8, PID=str(job.pid))
        assert "COL002 collective-missing" in done.stdout, done.stdout + done.stderr
        assert "train.py:7" in done.stdout
    finally:
        os.kill(job.pid, signal.SIGTERM)
        job.wait()


def test_9_compare_two_runs(desk: Desk) -> None:
    desk.take("guarded-collective")
    before, _, after, compared = desk.type(9)
    assert (before.returncode, after.returncode, compared.returncode) == (1, 0, 0)
    assert compared.stdout.startswith("ddpdoctor compared · nothing new · 1 resolved")


def test_10_explain_a_pasted_message(desk: Desk) -> None:
    (done,) = desk.type(10)
    assert done.returncode == 0
    assert {"COL008", "ERR001"} <= set(re.findall(r"[A-Z]{3}\d{3}", done.stdout))
