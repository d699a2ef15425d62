"""``pytest --ddpdoctor``: tests marked ``ddpdoctor(nproc=2)`` run on several ranks and fail with the verdict."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

MARK = "ddpdoctor(nproc=2, fail_on='error'): run by several ranks under ddpdoctor (with --ddpdoctor)"
VARIABLE = "PYTEST_DDPDOCTOR_RANK"
"""Set in the ranks of a test's job, in which the test is what it is."""
FAIL_ON = ("error", "warning", "never")
LINES_SHOWN = 30
"""Last lines of the job's output that are shown where it left no report."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --ddpdoctor."""
    parser.getgroup("ddpdoctor").addoption(
        "--ddpdoctor", action="store_true", help="run tests marked ddpdoctor on several ranks"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark."""
    config.addinivalue_line("markers", MARK)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let jobs stand for the marked tests; in a rank they are what they are."""
    if VARIABLE in os.environ:
        return
    for index, item in enumerate(items):
        mark = item.get_closest_marker("ddpdoctor")
        if mark is None or item.parent is None:
            continue
        if not config.getoption("--ddpdoctor"):
            item.add_marker(pytest.mark.skip(reason="runs on several ranks: pytest --ddpdoctor"))
        else:
            items[index] = RanksItem.from_parent(item.parent, name=item.name, test=item, mark=mark)


class RanksFailed(Exception):
    """The ranks of a test failed, or ddpdoctor has found an error."""


class RanksItem(pytest.Item):
    """A test that a job runs."""

    def __init__(self, *, test: pytest.Item, mark: pytest.Mark, **rest: Any) -> None:
        super().__init__(**rest)
        self.test = test
        self.nproc, self.fail_on = _read_mark(mark)
        self.own_markers.extend(test.own_markers)
        self.keywords.update(test.keywords)

    def runtest(self) -> None:
        """Run the job.

        Raises:
            RanksFailed: with the verdict.
        """
        with tempfile.TemporaryDirectory(prefix="pytest-ddpdoctor-") as folder:
            run_directory = Path(folder, "run")
            done = subprocess.run(
                [*self._command(run_directory), *self._rank_arguments()],
                cwd=self.config.rootpath,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
            )
            sys.stdout.write(done.stdout)
            if done.returncode != 0:
                raise RanksFailed(_describe(run_directory, done))

    def _command(self, run_directory: Path) -> list[str]:
        run = [sys.executable, "-m", "ddpdoctor", "run", "--nproc", str(self.nproc), "--no-color"]
        return [
            *run,
            "--run-dir",
            str(run_directory),
            "--fail-on",
            self.fail_on,
            "-m",
            "pytest_ddpdoctor.ranks",
        ]

    def _rank_arguments(self) -> list[str]:
        """Return pytest's arguments in the ranks: this test alone, with nothing that several would write."""
        plugins = self.config.pluginmanager
        off = [option for name, option in (("xdist", "-n0"), ("_cov", "--no-cov")) if plugins.hasplugin(name)]
        ini = ["-c", str(self.config.inipath)] if self.config.inipath else []
        common = [
            "-p",
            "no:cacheprovider",
            "-q",
            "--no-header",
            "--capture=no",
            f"--rootdir={self.config.rootpath}",
        ]
        return [*common, *ini, *off, self.test.nodeid]

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show the verdict instead of a traceback of this plugin's."""
        return str(excinfo.value) if isinstance(excinfo.value, RanksFailed) else super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Return where the test is."""
        return self.test.reportinfo()


def _read_mark(mark: pytest.Mark) -> tuple[int, str]:
    """Return ranks and severity.

    Raises:
        pytest.UsageError: the mark has other arguments.
    """
    nproc, fail_on = mark.kwargs.get("nproc", 2), mark.kwargs.get("fail_on", "error")
    known = not mark.args and set(mark.kwargs) <= {"nproc", "fail_on"}
    if not known or not isinstance(nproc, int) or nproc < 1 or fail_on not in FAIL_ON:
        raise pytest.UsageError(f"a mark that reads {mark.args}, {mark.kwargs} is not {MARK}")
    return nproc, fail_on


def _describe(run_directory: Path, done: subprocess.CompletedProcess[str]) -> str:
    """Return the verdict as text; what was written where there is none."""
    import ddpdoctor

    try:
        return ddpdoctor.render(ddpdoctor.load_report(run_directory))
    except ddpdoctor.DoctorError as problem:
        tail = "\n".join(done.stdout.splitlines()[-LINES_SHOWN:])
        return (
            f"the job ended with exit code {done.returncode} and left no report ({problem.message})\n{tail}"
        )
