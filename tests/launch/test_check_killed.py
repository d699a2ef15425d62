"""`ddpdoctor check` killed with SIGKILL, alone or with its whole process group, at any moment: nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpdoctor.launch import witness
from tests.launch.doctor import FACTORIES, Running, start

SHORT = ("--nproc", "2", "--skip", "bandwidth,collectives,backends")
HANGING = (*SHORT, "--model", f"{FACTORIES}:hangs_on_one", "--stage-timeout", "ddp=100")
SLOW_IMPORT = "import sys, time\nif 'multiprocessing.forkserver' in str(sys.orig_argv): time.sleep(120)\n"


def in_ddp(running: Running) -> object:
    return [event for event in running.events("rank-1") if event.get("stage") == "ddp"]


def has_rank(running: Running) -> object:
    return running.events("rank-0")


def has_agent(running: Running) -> object:
    return running.events("agent")


def has_directory(running: Running) -> object:
    return running.workdir()


def has_server(running: Running) -> object:
    workdir = running.workdir()
    return workdir and (workdir / "server.log").exists()


def kill_command(running: Running) -> None:
    running.process.kill()


def kill_group(running: Running) -> None:
    os.killpg(running.process.pid, signal.SIGKILL)


def semaphores() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith("sem.")}


@pytest.mark.parametrize(
    ("moment", "kill"),
    [
        (has_directory, kill_command),
        (has_server, kill_group),
        (in_ddp, kill_command),
        (in_ddp, kill_group),
        *(
            pytest.param(moment, kill, marks=pytest.mark.long)
            for moment, kill in (
                (has_directory, kill_group),
                (has_server, kill_command),
                (has_agent, kill_command),
                (has_agent, kill_group),
                (has_rank, kill_command),
                (has_rank, kill_group),
            )
        ),
    ],
)
def test_nothing_is_left(
    tmp_path: Path, moment: Callable[[Running], object], kill: Callable[[Running], None]
) -> None:
    with start(tmp_path, *HANGING) as running:
        running.wait_for(lambda: moment(running))
        directory = running.workdir()
        kill(running)
        running.process.wait()
        assert running.leftovers(limit_s=30.0) == []
        assert directory is not None
        assert not [name for name in semaphores() if name.startswith(f"sem.{directory.name}")]


@pytest.mark.parametrize("kill", [kill_command, kill_group])
def test_nothing_is_left_while_torch_is_being_imported(
    tmp_path: Path, kill: Callable[[Running], None]
) -> None:
    """The import takes two minutes here; the process that does it must not stay for them."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SLOW_IMPORT)
    with start(tmp_path, *HANGING, environ={"PYTHONPATH": str(tmp_path / "site")}) as running:
        running.wait_for(lambda: has_server(running))
        time.sleep(0.5)
        kill(running)
        running.process.wait()
        assert running.leftovers(limit_s=30.0) == []


@pytest.mark.parametrize("kill", [kill_command, kill_group])
def test_stopped_processes_are_ended_too(tmp_path: Path, kill: Callable[[Running], None]) -> None:
    with start(tmp_path, *HANGING) as running:
        running.wait_for(lambda: in_ddp(running))
        for name in ("agent", "rank-0"):
            os.kill(running.pid_of(name), signal.SIGSTOP)
        kill(running)
        running.process.wait()
        assert running.leftovers(limit_s=30.0) == []


def watch(directory: Path, value: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-S", str(witness.__file__), str(directory), value]
    return subprocess.Popen(command, stdin=subprocess.PIPE)


def test_witness_follows_no_link_and_harms_nobody_else(tmp_path: Path) -> None:
    kept, ours = tmp_path / "kept", tmp_path / "ours"
    kept.mkdir()
    (kept / "file").write_text("kept")
    (ours / "deep" / "er").mkdir(parents=True)
    (ours / "link").symlink_to(kept)
    marked = subprocess.Popen(["sleep", "60"], env={**os.environ, witness.MARK: "ddpdoctor-test-a"})
    other = subprocess.Popen(["sleep", "60"], env={**os.environ, witness.MARK: "ddpdoctor-test-ab"})
    try:
        with watch(ours, "ddpdoctor-test-a") as watching:
            assert watching.stdin is not None
            watching.stdin.close()
            assert watching.wait(30) == 0
        assert (ours.exists(), (kept / "file").read_text()) == (False, "kept")
        assert marked.wait(10) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for each in (marked, other):
            each.kill()
            each.wait()


def test_witness_of_a_command_that_has_ended_well_does_nothing(tmp_path: Path) -> None:
    with watch(tmp_path, "ddpdoctor-test-c") as watching:
        watching.communicate(b".", timeout=30)
    assert watching.returncode == 0
    assert tmp_path.exists()
