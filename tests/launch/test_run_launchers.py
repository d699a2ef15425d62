"""One `ddpdoctor run` for each task of mpirun: they find each other, and one of them speaks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ddpdoctor.gather.network.ports import free_port
from tests.slurm.jobs import count_verdicts, line_of, read_report, write_program

LIMIT_S = 240.0
RUN = (sys.executable, "-m", "ddpdoctor", "run", "--nodes-wait", "60")
PROGRAM = ("--", sys.executable, "train.py")
OPENMPI = ("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe")
MPICH = ("mpirun.mpich",)


def mpirun(
    folder: Path, launcher: tuple[str, ...], *words: str, tasks: int = 2
) -> subprocess.CompletedProcess[str]:
    """Run tasks; Open MPI passes on what its own environment holds."""
    if shutil.which(launcher[0]) is None:
        pytest.skip(f"{launcher[0]} is not installed")
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*launcher, "-n", str(tasks), *words],
        cwd=write_program(folder),
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.parametrize("launcher", [OPENMPI, pytest.param(MPICH, marks=pytest.mark.long)])
def test_tasks_of_mpirun_get_one_verdict(tmp_path: Path, launcher: tuple[str, ...]) -> None:
    done = mpirun(tmp_path, launcher, *RUN, *PROGRAM, "raise")
    assert done.returncode != 0
    assert count_verdicts(done.stdout + done.stderr) == 1, done.stdout + done.stderr
    report = read_report(tmp_path)
    finding = report["findings"][0]
    assert (finding["code"], finding["ranks"]) == ("ERR001", [1])
    assert finding["where"][0]["line"] == line_of("FAULT")
    assert [node["ranks"] for node in report["world"]["nodes"]] == [[0, 1]]
    assert report["world"]["launcher"] == "mpirun"


@pytest.mark.long
@pytest.mark.parametrize("launcher", [OPENMPI, MPICH])
def test_hang_across_tasks_of_mpirun_is_named(tmp_path: Path, launcher: tuple[str, ...]) -> None:
    done = mpirun(tmp_path, launcher, *RUN, *PROGRAM, "hang", tasks=3)
    assert (done.stdout + done.stderr).count("ddpdoctor: COL003: ") == 1
    finding = read_report(tmp_path)["findings"][0]
    assert (finding["code"], finding["ranks"]) == ("COL003", [2])


@pytest.mark.long
@pytest.mark.parametrize("launcher", [OPENMPI, MPICH])
def test_healthy_job_of_mpirun_says_so_once(tmp_path: Path, launcher: tuple[str, ...]) -> None:
    done = mpirun(tmp_path, launcher, *RUN, *PROGRAM, "ok")
    assert (done.returncode, count_verdicts(done.stdout + done.stderr)) == (0, 1)
    assert read_report(tmp_path)["verdict"]["status"] == "healthy"


@pytest.mark.long
def test_one_run_around_mpirun_sees_all_ranks(tmp_path: Path) -> None:
    if shutil.which(OPENMPI[0]) is None:
        pytest.skip(f"{OPENMPI[0]} is not installed")
    done = subprocess.run(
        [*RUN, "--", *OPENMPI, "-n", "2", sys.executable, "train.py", "raise"],
        cwd=write_program(tmp_path),
        env={**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    (path,) = (tmp_path / "ddpdoctor-runs").glob("*/report.json")
    assert '"ERR001"' in path.read_text(), done.stderr


def test_open_mpi_output_that_is_redirected_has_no_colours(tmp_path: Path) -> None:
    """Open MPI gives its tasks a terminal of its own: what is written there goes to a file all the same."""
    done = mpirun(tmp_path, OPENMPI, sys.executable, "-m", "ddpdoctor", "list")
    assert done.returncode == 0
    assert done.stdout
    assert "\x1b" not in done.stdout + done.stderr
