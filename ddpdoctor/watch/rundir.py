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
from ddpdoctor.watch.keeping import anchor, open_folder

RUNS = "ddpdoctor-runs"
"""Folder of the run directories, below the working directory, unless --run-dir says otherwise."""


@dataclass(slots=True)
class RunDirectory:
    """Where one run keeps its files, and the short private directory of its sockets."""

    path: Path
    private: Path
    """Directory for sockets, whose paths may have 107 bytes at most (unix(7)); removed at the end."""
    note: str | None = None
    """Why the files are not where they were asked for."""
    descriptor: int | None = None
    """Open descriptor of the run directory, which the job may rename, remove, or replace by a link."""

    @property
    def kept(self) -> Path:
        """The directory by its descriptor: what is read and written here in spite of what the job does to the path."""
        return self.path if self.descriptor is None else anchor(self.descriptor)

    @property
    def processes(self) -> Path:
        """Events of each process."""
        return self.kept / "processes"

    def remove_if_empty(self) -> None:
        """Remove the directory of a run that did not begin."""
        above = (self.path.parent,) if self.path.parent.name == RUNS else ()
        for folder in (self.processes, self.kept / "logs", self.path, *above):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def restore(self) -> str | None:
        """Find the directory again after the job, for the report; make it again where the job has removed it.

        Returns:
            What there is to report about that.

        Raises:
            OSError: there is no place for the report.
        """
        if self.descriptor is None:
            return None
        held = os.fstat(self.descriptor)
        if not held.st_nlink:
            return self._make_again()
        with contextlib.suppress(OSError):
            if os.path.samestat(os.lstat(self.path), held):
                gone = not os.path.isdir(self.processes)
                lost = f"the job removed {self.path}/processes, with what its processes had recorded"
                return lost if gone else None
        now = Path(os.readlink(self.kept))
        before, self.path = self.path, now
        return f"the job moved or replaced {before}: the run is kept in {now}"

    def _make_again(self) -> str:
        lost = f"{self.path} was removed while the job ran, with what its processes had recorded"
        try:
            self.path.mkdir(mode=0o700, parents=True)
        except OSError:  # something else stands there now
            self.path = Path(tempfile.mkdtemp(prefix="ddpdoctor-run-"))
            lost += f"; the report is in {self.path}"
        self._hold()
        return lost

    def _hold(self) -> None:
        self.release()
        self.descriptor = open_folder(self.path)

    def release(self) -> None:
        """Close the descriptor."""
        if self.descriptor is not None:
            descriptor, self.descriptor = self.descriptor, None
            os.close(descriptor)

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
            f"no directory can be created for the run: {problem.strerror or problem}",
            hint="TMPDIR=/some/folder ddpdoctor run …",
        ) from problem


def _make(asked: str | None) -> RunDirectory:
    private = Path(tempfile.mkdtemp(prefix="ddr-", dir=_short_base()))
    try:
        run = _make_kept(asked, private)
        run._hold()
    except BaseException:
        shutil.rmtree(private, ignore_errors=True)
        raise
    return run


def _make_kept(asked: str | None, private: Path) -> RunDirectory:
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
    for name in ("processes", "logs"):
        (run.path / name).mkdir(mode=0o700)
    with contextlib.suppress(OSError):
        os.chmod(run.path, 0o700)


def _short_base() -> str:
    base = tempfile.gettempdir()
    return base if len(base) <= 60 else "/tmp"
