"""Running `ddpdoctor check` as a user does, and looking at what it leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT_S = 150.0
"""For one command, whatever else the machine does; alone each takes 3 to 8 s."""
MARK = "DDPDOCTOR_TEST_RUN"
"""Variable that every process of a run inherits, by which what is left of it is found."""
APART = ("--ignore", "ENV016")
"""Ranks that another job of this machine left behind, such as a test's that runs beside this one, are not meant."""
FACTORIES = Path(__file__).with_name("factories.py")


@dataclass(frozen=True)
class Result:
    """How one command ended."""

    code: int
    out: str
    err: str
    report: dict[str, Any] | None
    left: list[str]
    """Processes and files that are still there."""

    def codes(self) -> list[str]:
        """Return the codes of the findings in order."""
        assert self.report is not None, self.err
        return [finding["code"] for finding in self.report["findings"]]

    def first(self) -> dict[str, Any]:
        """Return the first finding."""
        assert self.report is not None, self.err
        assert self.report["findings"], self.out
        return dict(self.report["findings"][0])

    def stage(self, name: str) -> dict[str, Any]:
        """Return the record of a stage."""
        assert self.report is not None, self.err
        return next(dict(s) for s in self.report["evidence"]["stages"] if s["stage"] == name)


@dataclass
class Running:
    """A command that was started."""

    process: subprocess.Popen[str]
    folder: Path
    temporary: Path
    mark: str

    def workdir(self) -> Path | None:
        """Return the private directory of the command, once it is there."""
        return next(iter(self.temporary.glob("ddpdoctor-*")), None)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the events that ``name`` (``agent`` or ``rank-0``) has written so far."""
        workdir = self.workdir()
        path = workdir / f"{name}.jsonl" if workdir else None
        if path is None or not path.exists():
            return []
        lines = path.read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def wait_for(self, condition: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
        """Wait until ``condition`` gives something true, and return it."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            found = condition()
            if found:
                return found
            assert self.process.poll() is None, "the command ended before that"
            time.sleep(0.02)
        raise AssertionError("waited until it timed out")

    def pid_of(self, name: str) -> int:
        """Return the process id of the agent or of a rank, waiting for it to start."""
        events = self.wait_for(lambda: self.events(name))
        return int(events[0]["pid"])

    def finish(self) -> Result:
        """Wait for the end and look at what is left."""
        out, err = self.process.communicate(timeout=LIMIT_S)
        path = self.folder / "report.json"
        report = json.loads(path.read_text()) if path.exists() else None
        return Result(self.process.returncode, out, err, report, self.leftovers())

    def leftovers(self, limit_s: float = 10.0) -> list[str]:
        """Return processes and temporary files of the run that do not go away within the limit."""
        end = time.monotonic() + limit_s
        while True:
            left = [*marked_processes(self.mark), *map(str, self.temporary.iterdir())]
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.05)


def marked_processes(mark: str) -> list[str]:
    """Return the processes that inherited ``mark``."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or entry.name == str(os.getpid()):
            continue
        try:
            if f"{MARK}={mark}\0".encode() in (entry / "environ").read_bytes():
                found.append(f"{entry.name}: {(entry / 'cmdline').read_text()!r}")
        except OSError:
            continue
    return found


@contextmanager
def start(
    folder: Path,
    *options: str,
    environ: Mapping[str, str] | None = None,
    json_file: bool = True,
    program: Sequence[str] = (sys.executable, "-m", "ddpdoctor"),
) -> Iterator[Running]:
    """Start ``ddpdoctor check OPTIONS`` in ``folder``, with a TMPDIR of its own; ``program`` may be another launcher."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix="ddt-", dir="/tmp"))  # pytest's own is too long for sockets
    mark = uuid.uuid4().hex
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "SLURM_", "OMPI_", "PMI"))}
    variables |= {"TMPDIR": str(temporary), MARK: mark, **(environ or {})}
    command = [*program, "check", *APART, *options]
    if json_file:
        command += ["--json", "report.json"]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    running = Running(process, folder, temporary, mark)
    try:
        yield running
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
        shutil.rmtree(temporary, ignore_errors=True)


def check(folder: Path, *options: str, environ: Mapping[str, str] | None = None, **how: Any) -> Result:
    """Run ``ddpdoctor check OPTIONS`` to its end."""
    with start(folder, *options, environ=environ, **how) as running:
        return running.finish()
