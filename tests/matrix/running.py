"""Commands of a step: each in a folder of its own, to its end or to a limit."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT_S = 240.0
"""For one command, on a busy machine."""
DOCTOR = (sys.executable, "-m", "ddpdoctor")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
JOBS = Path(__file__).with_name("jobs")
_WARNING = re.compile(r"^(?P<file>[^\s:][^:]*):\d+: (?P<kind>\w*Warning): (?P<text>.*)")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int | None
    """None: it had to be ended at the limit."""
    stdout: str
    stderr: str
    report: dict[str, Any]
    """What it wrote with --json; empty where it did not."""

    def tail(self) -> tuple[str, ...]:
        """Return the last lines, for a note."""
        return tuple((self.stderr.strip() or self.stdout.strip()).splitlines()[-12:])


@contextlib.contextmanager
def make_folder() -> Iterator[Path]:
    """A folder that goes with the step."""
    with tempfile.TemporaryDirectory(prefix="s-", ignore_cleanup_errors=True) as place:
        yield Path(place)


def start(
    command: Sequence[str],
    folder: Path,
    variables: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command in a folder, as the leader of a session; its output goes to files there."""
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        return subprocess.Popen(
            list(command), cwd=cwd or folder, env={**os.environ, "OMP_NUM_THREADS": "1", **(variables or {})},
            stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
        )  # fmt: skip


def finish(job: subprocess.Popen[bytes], folder: Path, limit_s: float = LIMIT_S) -> Ended:
    """Wait for a command of `start`, and end what is left of its session."""
    code: int | None
    try:
        code = job.wait(limit_s)
    except subprocess.TimeoutExpired:
        code = None
    kill(job)
    report = folder / "report.json"
    return Ended(
        code,
        (folder / "stdout").read_text(errors="replace"),
        (folder / "stderr").read_text(errors="replace"),
        json.loads(report.read_text()) if report.exists() else {},
    )


def kill(job: subprocess.Popen[bytes]) -> None:
    """End a command with its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()


def execute(
    command: Sequence[str],
    folder: Path,
    variables: Mapping[str, str] | None = None,
    limit_s: float = LIMIT_S,
    cwd: Path | None = None,
) -> Ended:
    """Run a command to its end."""
    folder.mkdir(exist_ok=True)
    return finish(start(command, folder, variables, cwd), folder, limit_s)


def ask_doctor(folder: Path, *arguments: str, variables: Mapping[str, str] | None = None) -> Ended:
    """Run one of our commands with a report beside it."""
    return execute([*DOCTOR, *arguments, "--json", "report.json", "--no-color"], folder, variables)


def wait_for(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
    """Return whether it came to be so before the limit."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def find_warnings(text: str) -> list[tuple[str, str, str]]:
    """Return (file, category, text) of each warning that Python printed, in order."""
    found = (_WARNING.match(line) for line in text.splitlines())
    return [(each["file"], each["kind"], each["text"]) for each in found if each]


def name_first(report: dict[str, Any]) -> str:
    """Return what a report comes down to: the first finding's code, else the verdict."""
    if not report:
        return "no report"
    findings = [each for each in report["findings"] if each.get("state") != "withdrawn"]
    return str(findings[0]["code"] if findings else report["verdict"]["status"])
