"""The directory of one run: where evidence, logs and reports are kept."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ddpdoctor.errors import DoctorError

RUNS = "ddpdoctor-runs"
"""Below the working directory, unless --run-dir says otherwise."""


@dataclass(slots=True)
class RunDirectory:
    """Where one run keeps its files, and the short private directory of its sockets."""

    path: Path
    private: Path
    """For sockets, whose paths may have 107 bytes at most (unix(7)); removed at the end."""
    note: str | None = None
    """Why the files are not where they were asked for."""

    @property
    def processes(self) -> Path:
        """Events of each process."""
        return self.path / "processes"

    @property
    def logs(self) -> Path:
        """Output of each process."""
        return self.path / "logs"

    def remove_if_empty(self) -> None:
        """Remove the directory of a run that did not begin."""
        for folder in (self.processes, self.logs, self.path):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def restore(self) -> str | None:
        """Make the directory again where the job has removed it, for the report; return what is to be said of that."""
        if self.processes.is_dir():
            return None
        with contextlib.suppress(OSError):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return f"{self.path} was removed while the job ran, with what its processes had written down"

    def remove_private(self) -> None:
        """Remove the sockets."""
        shutil.rmtree(self.private, ignore_errors=True)


def make_run_directory(asked: str | None) -> RunDirectory:
    """Make a new directory, 0700, that no other run shares.

    Where it cannot be made as asked, a temporary one serves: the job is more important than its evidence.

    Raises:
        DoctorError: not even a temporary directory can be made.
    """
    try:
        return _make(asked)
    except OSError as problem:
        raise DoctorError(
            f"no directory can be made for the run: {problem.strerror or problem}",
            hint="TMPDIR=/some/folder ddpdoctor run …",
        ) from problem


def _make(asked: str | None) -> RunDirectory:
    private = Path(tempfile.mkdtemp(prefix="ddr-", dir=_short_base()))
    name = f"{datetime.now():%Y%m%d-%H%M%S}-{os.urandom(2).hex()}"
    wanted = Path(asked) if asked else Path(RUNS, name)
    try:
        wanted.mkdir(mode=0o700, parents=True, exist_ok=asked is not None)
        run = RunDirectory(wanted.resolve(), private)
        try:
            if any(wanted.iterdir()):
                raise FileExistsError
            _make_folders(run)
        except FileExistsError:  # or another run was quicker
            run = RunDirectory(wanted.resolve() / name, private)
            run.path.mkdir(mode=0o700)
            _make_folders(run)
    except OSError as problem:
        path = Path(tempfile.mkdtemp(prefix="ddpdoctor-run-"))
        reason = f"{wanted} cannot be used ({problem.strerror or problem})"
        run = RunDirectory(path, private, f"{reason}; the run is kept in {path}")
        _make_folders(run)
    return run


def _make_folders(run: RunDirectory) -> None:
    for folder in (run.processes, run.logs):
        folder.mkdir(mode=0o700)
    with contextlib.suppress(OSError):
        os.chmod(run.path, 0o700)


def _short_base() -> str:
    base = tempfile.gettempdir()
    return base if len(base) <= 60 else "/tmp"
