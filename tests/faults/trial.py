"""Running one case, under the doctor or without it, and what came of it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.faults.truth import Truth
from tests.unmeasured import unmeasured

DOCTOR = (sys.executable, "-m", "ddpdoctor", "run")
LIMIT_S = 120.0
"""A case takes 5 to 40 s on two cores; one that is not over by then hangs."""
HANGS_S = 25.0
"""A job that is said to hang is given so long to get on without ddpdoctor."""
CLEANUP_S = 2.0
"""For processes that outlive the command by design of multiprocessing."""


@dataclass(frozen=True, slots=True)
class Trial:
    """How one launch ended."""

    exit_code: int | None
    """None: cut at the limit."""
    seconds: float
    output: str
    report: dict[str, Any] | None
    """The report, where there is one."""


def find_obstacle(truth: Truth) -> str | None:
    """Return why a case cannot be shown on this machine, None where it can."""
    if "root" in truth.needs and os.geteuid() != 0:
        return "needs root"
    if "cgroup1" in truth.needs and not os.access("/sys/fs/cgroup/memory/memory.limit_in_bytes", os.R_OK):
        return "needs the memory controller of cgroup v1"
    if "torch-2.13" in truth.needs and tuple(map(int, version("torch").split(".")[:2])) < (2, 13):
        return "needs torch 2.13"
    if "mount" in truth.needs and not _may_mount():
        return "needs a mount namespace"
    return None


def try_case(truth: Truth, doctor: Sequence[str] = DOCTOR, *, limit_s: float = LIMIT_S) -> Trial:
    """Run a case under the doctor, in a copy of its folder."""
    with tempfile.TemporaryDirectory(prefix="ddpdoctor-fault-", ignore_cleanup_errors=True) as place:
        report = Path(place) / "report.json"
        ours = [*doctor, "--run-dir", f"{place}/run", "--json", str(report), "--no-color"]
        return _launch(truth, [*truth.wrap, *ours, *truth.launch], Path(place), report, limit_s)


def try_plain(truth: Truth) -> Trial:
    """Run a case as its user would without ddpdoctor."""
    limit_s = HANGS_S if truth.hangs else LIMIT_S
    with tempfile.TemporaryDirectory(prefix="ddpdoctor-fault-", ignore_cleanup_errors=True) as place:
        return _launch(truth, truth.make_plain_command(), Path(place), None, limit_s)


def fails_as_told(truth: Truth, trial: Trial) -> bool:
    """Whether a job without ddpdoctor ended as its truth says."""
    return trial.exit_code == (None if truth.hangs else truth.exit) and truth.says in trial.output


def _launch(truth: Truth, command: list[str], place: Path, report: Path | None, limit_s: float) -> Trial:
    folder = place / truth.name
    shutil.copytree(truth.folder, folder, ignore=shutil.ignore_patterns("__pycache__"))
    # `python` and `torchrun` of a command are those of the interpreter that runs the trial.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    more = {"PATH": path, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment = unmeasured() | more  # coverage's hooks would change what its tracebacks look like
    started = time.monotonic()
    with (place / "output").open("w+b") as output:
        job = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            exit_code: int | None = job.wait(limit_s)
        except subprocess.TimeoutExpired:
            exit_code = None
        seconds = time.monotonic() - started
        # Helpers that a script leaves behind have its session; nothing of a case outlives it.
        _end_session(job, in_time=exit_code is not None)
        end_rest(folder)
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    written = json.loads(report.read_text()) if report is not None and report.exists() else None
    return Trial(exit_code, seconds, text, written)


def _end_session(job: subprocess.Popen[bytes], *, in_time: bool) -> None:
    """End what a case has left; what is about to end, such as the tracker that removes semaphores, may do so."""
    end = time.monotonic() + (CLEANUP_S if in_time else 0)
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < end:
            os.killpg(job.pid, 0)
            time.sleep(0.05)
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()


def end_rest(folder: Path) -> None:
    """End what still works in the folder of a case: torchrun gives each rank a session of its own."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # gone, or somebody else's
                if (entry / "cwd").readlink().is_relative_to(folder):
                    os.kill(int(entry.name), signal.SIGKILL)


def _may_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0
