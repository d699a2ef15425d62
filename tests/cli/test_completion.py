"""Completion of commands and options in real shells, and what a bug report needs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ddpdoctor import __version__
from ddpdoctor.cli import completion
from tests.cli.conftest import Run

ASK = {
    "bash": 'source {script}; COMP_WORDS=(ddpdoctor {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _ddpdoctor; printf "%s\\n" "${{COMPREPLY[@]}}"',
    "fish": 'source {script}; complete -C "ddpdoctor {words}"',
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "wanted"), [("anal", "analyze"), ("check --htm", "--html"), ("run --watch-l", "--watch-level")]
)
@pytest.mark.parametrize("shell", sorted(ASK))
def test_commands_and_options_are_completed(
    run: Run, tmp_path: Path, shell: str, words: str, wanted: str
) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(run("completion", shell).out)
    asked = ASK[shell].format(script=script, words=words)
    done = subprocess.run([program, "-c", asked], capture_output=True, text=True, check=True, timeout=60)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == [wanted]
    assert not done.stderr


def test_the_script_for_zsh_is_one(run: Run, tmp_path: Path) -> None:
    program = shutil.which("zsh")
    if program is None:
        pytest.skip("zsh is not installed")
    script = tmp_path / "_ddpdoctor"
    script.write_text(run("completion", "zsh").out)
    listed = f"compdef() {{}}; compadd() {{ shift; print -l -- $@ }}; source {script}; words=(ddpdoctor lint --d); CURRENT=3; PREFIX=--d; _ddpdoctor"
    done = subprocess.run([program, "-fc", listed], capture_output=True, text=True, check=True, timeout=60)
    assert "--diff" in done.stdout.split()
    assert "--nproc" not in done.stdout.split()


def test_another_shell_is_a_usage_error(run: Run) -> None:
    result = run("completion", "tcsh")
    assert result.code == 2
    assert ", ".join(completion.SHELLS) in result.err


def test_the_long_version_has_what_a_bug_report_needs(run: Run) -> None:
    assert run("--version").out == f"ddpdoctor {__version__}\n"
    told = dict(line.split(None, 1) for line in run("--version", "-v").out.splitlines())
    assert {
        "ddpdoctor",
        "Python",
        "platform",
        "torch",
        "backends",
        "devices",
        "psutil",
        "plugins",
    } <= told.keys()
    assert "gloo" in told["backends"]
