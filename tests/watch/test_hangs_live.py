"""Jobs that stand still under ``ddpdoctor run``: named, ended on proof, left alone otherwise."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.watch.injecting import line_of, write
from tests.watch.launching import DOCTOR, LIMIT_S, environ

GUARDED = """
    import torch
    import torch.distributed as dist

    def evaluate(model):
        accuracy = torch.zeros(1)
        dist.all_reduce(accuracy)  # guarded
        return accuracy

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.barrier()
    if rank == 0:
        evaluate(None)
    dist.barrier()  # others
"""
SLEEPER = """
    import time
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    if dist.get_rank() == 1:
        time.sleep({seconds})  # sleeps
    dist.barrier()
    dist.destroy_process_group()
"""


def doctor(
    folder: Path, source: str, *options: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run a script with two ranks; return how it ended and its report."""
    script = write(folder, source)
    run = folder / "run"
    done = subprocess.run(
        [*DOCTOR, "--run-dir", str(run), *options, "--nproc", "2", "--standalone", str(script)],
        cwd=folder,
        env=environ(folder),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    return done, json.loads((run / "report.json").read_text())


def test_a_deadlock_is_named_and_ended(tmp_path: Path) -> None:
    done, report = doctor(tmp_path, GUARDED)
    script = tmp_path / "train.py"
    assert done.returncode == 1
    assert report["job"]["stopped_by"] == "ddpdoctor"
    first = report["findings"][0]
    assert (first["code"], first["role"], first["ranks"]) == ("COL002", "cause", [0])
    assert (first["where"][0]["file"], first["where"][0]["line"]) == (
        "train.py",
        line_of(script, "# guarded"),
    )
    assert {(place["role"], place["line"]) for place in first["where"]} >= {
        ("victim", line_of(script, "# others")),
        ("condition", line_of(script, "if rank == 0:")),
    }
    assert [each["code"] for each in report["findings"] if each["severity"] == "error"] == ["COL002"]
    (look,) = report["evidence"]["standstills"]
    assert (look["stage"], look["stopped"]) == ("proved", True)
    assert look["still_s"] < 30
    assert "ddpdoctor: COL002: " in done.stderr


@pytest.mark.long
def test_on_request_a_deadlock_is_only_reported(tmp_path: Path) -> None:
    script = write(tmp_path, GUARDED)
    command = [
        *DOCTOR,
        "--on-hang",
        "report",
        "--run-dir",
        "run",
        "--nproc",
        "2",
        "--standalone",
        str(script),
    ]
    with (tmp_path / "stderr").open("wb") as stderr:
        job = subprocess.Popen(
            command, cwd=tmp_path, env=environ(tmp_path), stderr=stderr, stdin=subprocess.DEVNULL
        )
    end = time.monotonic() + LIMIT_S
    try:
        while b"the job continues" not in (tmp_path / "stderr").read_bytes():
            assert time.monotonic() < end
            assert job.poll() is None
            time.sleep(0.2)
        time.sleep(10)  # it is looked at again
        assert job.poll() is None
        assert (tmp_path / "stderr").read_bytes().count(b"the job continues") == 1
    finally:
        job.terminate()
        job.wait(LIMIT_S)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["findings"][0]["code"] == "COL002"
    assert report["job"]["stopped_by"] is None


@pytest.mark.long
def test_a_suspicion_is_withdrawn_when_the_rank_moves(tmp_path: Path) -> None:
    done, report = doctor(tmp_path, SLEEPER.format(seconds=12), "--stall-after", "3")
    assert done.returncode == 0, done.stderr
    assert "suspected after" in done.stderr
    assert "stall cleared: the job is making progress again" in done.stderr
    assert report["verdict"]["status"] == "healthy"
    withdrawn = [each for each in report["findings"] if each["code"] == "COL009"]
    assert [each["state"] for each in withdrawn] == ["withdrawn"]


@pytest.mark.long
def test_a_confirmed_stall_is_ended_where_that_was_asked_for(tmp_path: Path) -> None:
    options = ("--stall-after", "2", "--hang-timeout", "5", "--on-hang", "abort")
    done, report = doctor(tmp_path, SLEEPER.format(seconds=600), *options)
    assert done.returncode == 1
    first = report["findings"][0]
    assert (first["code"], first["ranks"], first["confidence"]) == ("COL009", [1], "high")
    assert first["where"][0]["line"] == line_of(tmp_path / "train.py", "# sleeps")
