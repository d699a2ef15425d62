"""Looking at a script before it is launched."""

from __future__ import annotations

import errno
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.errors import UsageError
from ddpdoctor.judge import Registry
from ddpdoctor.report.build import build_report
from ddpdoctor.testing import STARTED
from ddpdoctor.watch.commandline import Split
from ddpdoctor.watch.launch.evidence import make_unstarted
from ddpdoctor.watch.launch.script import ScriptProblem, check_script, describe_start_failure, refuse_notebook
from ddpdoctor_checks.job import ends


def look(path: Path | str) -> ScriptProblem | None:
    return check_script(Split((), (), (str(path),)))


def test_a_script_that_parses_is_fine_and_not_run(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.write_text("# coding: latin-1\nraise SystemExit('never')\n")
    assert look(script) is None


def test_a_syntax_error_has_its_line(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.write_text("x = 1\nfor i in range(3)\n    pass\n")
    problem = look(script)
    assert problem is not None
    assert (problem.type, problem.line, problem.source) == ("SyntaxError", 2, "for i in range(3)")


def test_a_missing_file_is_said_so(tmp_path: Path) -> None:
    problem = look(tmp_path / "none.py")
    assert problem is not None
    assert problem.type == "FileNotFoundError"


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that may not be entered, also where root runs the tests."""
    folder = tmp_path / "closed"
    folder.mkdir()
    ask = os.stat

    def refuse(path: Any, *args: Any, **options: Any) -> os.stat_result:
        if str(path).startswith(f"{folder}/"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return ask(path, *args, **options)

    monkeypatch.setattr(os, "stat", refuse)
    return folder


def test_a_script_behind_a_directory_that_may_not_be_entered_is_said_so(closed: Path) -> None:
    problem = look(closed / "train.py")
    assert problem is not None
    assert problem.type == "PermissionError"


@pytest.mark.parametrize("name", ["python", "deeper/train.py"])
def test_a_command_behind_a_directory_that_may_not_be_entered_may_not_be_executed(
    closed: Path, name: str
) -> None:
    command = str(closed / name)
    failure = PermissionError(errno.EACCES, os.strerror(errno.EACCES), command)
    problem = describe_start_failure(Split((), (), (command, "-V"), is_command=True), failure)
    assert problem.exit_code == 126
    assert "is not executable" in problem.render()


def test_a_directory_needs_a_main(tmp_path: Path) -> None:
    problem = look(tmp_path)
    assert problem is not None
    assert problem.type == "IsADirectoryError"
    (tmp_path / "__main__.py").write_text("")
    assert look(tmp_path) is None


@pytest.mark.parametrize("data", [b"\x00\xff\xfe\x01", b"x = 1\0\n", b"print('\xe9')\n"])
def test_bytes_that_are_no_python_are_said_so(tmp_path: Path, data: bytes) -> None:
    script = tmp_path / "a.py"
    script.write_bytes(data)
    problem = look(script)
    assert problem is not None
    assert problem.type == "SyntaxError"
    report = build_report(
        make_unstarted(problem, Split((), (), (str(script),))),
        registry=_crash_checks(),
        started_at=STARTED,
        duration_s=1.0,
    )
    (finding,) = report.findings
    assert (finding.code, "does not parse" in finding.message) == ("ERR009", True)
    assert "Errno" not in finding.evidence[0].text


def _crash_checks() -> Registry:
    registry = Registry()
    registry.add_module(ends)
    return registry


def test_a_pipe_is_left_to_python(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    assert look(tmp_path / "pipe.py") is None


def test_a_zip_application_is_left_to_python(tmp_path: Path) -> None:
    path = tmp_path / "a.pyz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("__main__.py", "print(1)")
    assert look(path) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_said_so(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.write_text("")
    script.chmod(0)
    problem = look(script)
    assert problem is not None
    assert problem.type == "PermissionError"


def test_modules_and_commands_are_left_to_who_starts_them() -> None:
    assert check_script(Split((), ("-m",), ("no.such.module",))) is None
    assert check_script(Split((), (), ("no-such-command",), is_command=True)) is None


@pytest.mark.parametrize(
    "split",
    [
        Split((), (), ("deep/train.ipynb", "--epochs", "3")),
        Split((), (), ("python3", "-u", "deep/train.ipynb"), is_command=True),
        Split((), (), ("/opt/venv/bin/python", "deep/train.ipynb"), is_command=True),
    ],
)
def test_a_notebook_is_refused_with_what_to_do(
    split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep").mkdir()
    refuse_notebook(split)  # that there is no such file is said elsewhere
    (tmp_path / "deep" / "train.ipynb").write_text('{"cells": [], "nbformat": 4}')
    with pytest.raises(UsageError, match="is a notebook") as refused:
        refuse_notebook(split)
    assert "jupyter nbconvert --to script deep/train.ipynb" in str(refused.value.hint)
    assert "ddpdoctor lint deep/train.ipynb" in str(refused.value.hint)


@pytest.mark.parametrize(
    "split",
    [
        Split((), (), ("train.py", "data.ipynb")),
        Split((), (), ("jupyter", "nbconvert", "--execute", "train.ipynb"), is_command=True),
        Split((), (), ("python", "-m", "papermill", "train.ipynb"), is_command=True),
        Split((), (), ("python", "train.py", "train.ipynb"), is_command=True),
    ],
)
def test_a_notebook_that_a_program_is_given_is_its_own(
    split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("data.ipynb", "train.ipynb"):
        (tmp_path / name).write_text('{"cells": [], "nbformat": 4}')
    refuse_notebook(split)
