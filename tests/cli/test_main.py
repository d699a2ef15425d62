from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run, Stage
from tests.unmeasured import unmeasured

HEAVY = ("torch", "rich", "jinja2", "numpy")


def ddpdoctor(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ddpdoctor", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **settings},
        check=False,
    )


def test_help_shows_commands_and_examples(run: Run) -> None:
    result = run("--help")
    assert result.code == 0
    assert all(f"  {name} " in result.out for name in ("check", "explain", "list", "report"))
    assert "ddpdoctor check --nproc 4" in result.out
    assert result.err == ""
    assert run().out == result.out == run("help").out


@pytest.mark.parametrize("command", ["check", "explain", "list", "report"])
def test_help_of_each_command_has_examples_and_fits_80_columns(run: Run, command: str) -> None:
    result = run(command, "--help")
    assert result.code == 0
    assert f"ddpdoctor {command}" in result.out.partition("examples:")[2]
    assert result.out.isascii()
    assert max(map(len, result.out.splitlines())) <= 88
    assert run("help", command).out == result.out


def test_version(run: Run) -> None:
    assert run("--version").out.startswith("ddpdoctor ")


@pytest.mark.parametrize(
    ("typed", "meant"), [("chek", "check"), ("reprot", "report"), ("explian", "explain")]
)
def test_unknown_command_suggests_the_nearest(run: Run, typed: str, meant: str) -> None:
    result = run(typed)
    assert (result.code, result.out) == (2, "")
    assert f"there is no command '{typed}'" in result.err
    assert f"try: ddpdoctor {meant}" in result.err


def test_option_before_the_command_is_explained(run: Run) -> None:
    result = run("--nproc", "4")
    assert result.code == 2
    assert "try: ddpdoctor check --nproc 4" in result.err


def test_unknown_option_suggests_the_nearest(run: Run) -> None:
    result = run("check", "--nprok", "4")
    assert result.code == 2
    assert "--nprok" in result.err
    assert "try: ddpdoctor check --nproc" in result.err


def test_defect_of_ours_is_one_message_and_a_traceback_only_with_vv(run: Run, stage: Stage) -> None:
    stage.error = RuntimeError("boom")
    result = run("check")
    assert result.code == 3
    assert "internal error: RuntimeError: boom" in result.err
    assert "Traceback" not in result.err
    assert "Traceback" in run("check", "-vv").err


def test_interrupt_ends_with_130(run: Run, stage: Stage) -> None:
    stage.error = KeyboardInterrupt()
    result = run("check")
    assert result.code == 130
    assert result.err.strip() == "ddpdoctor: interrupted"


@pytest.mark.parametrize(
    "arguments", [["--help"], ["check", "--help"], ["list"], ["explain", "NET001"], ["report", "--help"]]
)
def test_quick_commands_import_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    program = (
        "import sys; from ddpdoctor.cli import main; code = main(sys.argv[1:]);"
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == "heavy: []"


def test_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m ddpdoctor list | head -c 1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert done.stderr == ""
    assert len(done.stdout) == 1


@pytest.mark.parametrize("arguments", [["list"], ["--help"], ["--version"], ["check", "--help"]])
def test_full_stdout_is_said_on_stderr(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ddpdoctor", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 3
    assert "No space left on device" in done.stderr
    assert "internal error" not in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_closed_stdout_is_said_on_stderr() -> None:
    command = f"{sys.executable} -m ddpdoctor list >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert "stdout is closed" in done.stderr


def test_terminal_without_utf8_gets_ascii() -> None:
    done = ddpdoctor("list", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0
    assert done.stdout.isascii()


def test_hostile_words_come_back_harmless(run: Run) -> None:
    result = run("report", "\x1b[2Jno\x07where")
    assert result.code == 2
    assert "\x1b" not in result.err
    assert "\\x1b[2Jno\\x07where" in result.err


def test_closed_stderr_leaves_the_exit_code_and_a_clean_stdout() -> None:
    command = f"{sys.executable} -m ddpdoctor chek 2>&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")


def test_file_that_hides_a_module_of_python_is_named(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "ddpdoctor", "check", "--only", "facts"],
        cwd=tmp_path,
        # Coverage's hook would import the module before it can be hidden.
        env=unmeasured("PYTHONSAFEPATH"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert "random.py shadows Python's own module random" in done.stderr
