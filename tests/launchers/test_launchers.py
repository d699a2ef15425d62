"""Accelerate's and Lightning's own launchers, with the real packages: who failed, of how many ranks, at which line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.watch.live.stacks import find_py_spy
from tests.launchers.programs import COMMANDS, line_of, make_command, make_path, write_programs
from tests.marks import mostly_long
from tests.watch.launching import LIMIT_S, doctor, environ, finish, start, wait_for

pytestmark = pytest.mark.slow
PLAIN = ("lightning", "kill")
CRASHES = [
    pytest.param(launcher, mode, marks=[] if (launcher, mode) == PLAIN else pytest.mark.long)
    for launcher in COMMANDS
    for mode in ("raise", "kill")
]
TOGETHER = [launcher for launcher in COMMANDS if launcher != "lightning"]


def variables(folder: Path) -> dict[str, str]:
    return environ(folder, PATH=make_path(), OMP_NUM_THREADS="1")


def watch(tmp_path: Path, launcher: str, mode: str) -> tuple[int, dict[str, Any], str]:
    """Run two ranks under ``ddpdoctor run -- LAUNCHER``."""
    out = write_programs(tmp_path) / "out"
    command = doctor(out, "--", *make_command(launcher, mode))
    ended = finish(start(command, out, tmp_path, env=variables(out)), out)
    said = ended.stderr.decode(errors="replace")
    report = out / "run" / "report.json"
    assert report.exists(), said
    return ended.code, json.loads(report.read_text()), said


@pytest.mark.parametrize("launcher", mostly_long(COMMANDS))
def test_healthy_job_is_healthy(tmp_path: Path, launcher: str) -> None:
    code, report, said = watch(tmp_path, launcher, "ok")
    assert (code, report["verdict"]["status"], report["world"]["size"]) == (0, "healthy", 2), said


@pytest.mark.parametrize(("launcher", "mode"), CRASHES)
def test_crash_of_one_rank_has_its_rank_and_line(tmp_path: Path, launcher: str, mode: str) -> None:
    code, report, said = watch(tmp_path, launcher, mode)
    assert code != 0
    assert report["findings"], said
    finding = report["findings"][0]
    assert (finding["code"], finding["ranks"]) == ("ERR001" if mode == "raise" else "ERR005", [1]), said
    name = "light.py" if launcher == "lightning" else "train.py"
    place = finding["where"][0]
    assert (place["file"], place["line"]) == (name, line_of(name, "FAULT" if mode == "raise" else "KILL"))


@pytest.mark.parametrize("launcher", mostly_long(TOGETHER))
def test_mismatch_is_named_while_the_job_lives(tmp_path: Path, launcher: str) -> None:
    """The program would wait for ever: that it ended at all shows that the hang was seen live."""
    code, report, said = watch(tmp_path, launcher, "hang")
    assert code == 1, said
    assert (report["findings"][0]["code"], report["job"]["stopped_by"]) == ("COL003", "ddpdoctor"), said
    assert line_of("train.py", "OTHER") in {place["line"] for place in report["findings"][0]["where"]}


@pytest.mark.long
def test_a_collective_against_a_backward_is_named_while_the_job_lives(tmp_path: Path) -> None:
    """Lightning's rank 0 waits in DistributedDataParallel's backward, which only C++ calls in."""
    code, report, said = watch(tmp_path, "lightning", "hang")
    assert code == 1, said
    assert [finding["code"] for finding in report["findings"]] == ["COL002"], said
    assert (report["findings"][0]["ranks"], report["job"]["stopped_by"]) == ([1], "ddpdoctor")
    assert report["findings"][0]["where"][0]["line"] == line_of("light.py", "OTHER")
    assert "rank 0 waits in the backward pass of DistributedDataParallel" in report["findings"][0]["message"]


@pytest.mark.long
@pytest.mark.skipif(find_py_spy() is None, reason="no py-spy")
def test_attach_finds_a_first_rank_that_started_the_others(tmp_path: Path) -> None:
    out = write_programs(tmp_path) / "out"
    job = start(make_command("lightning", "sleep"), out, tmp_path, env=variables(out))
    try:
        wait_for(lambda: (tmp_path / "sleeping").exists() or job.poll() is not None, "rank 1 sleeps")
        report = tmp_path / "attached.json"
        done = subprocess.run(
            [sys.executable, "-m", "ddpdoctor", "attach", str(job.pid), "--json", str(report)],
            env=variables(out), capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    assert done.returncode == 1, done.stderr
    finding = json.loads(report.read_text())["findings"][0]
    assert (finding["code"], finding["ranks"], finding["victims"]) == ("COL009", [1], [0])
    assert line_of("light.py", "SLEEP") in {place["line"] for place in finding["where"]}
