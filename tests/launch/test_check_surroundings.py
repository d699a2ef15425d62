"""`ddpdoctor check` where the terminal, the working directory or the standard streams are not as usual."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.doctor import APART, LIMIT_S, start

SMALL = ("--nproc", "2", "--only", "facts,rendezvous")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_signal_of_the_terminal_while_torch_is_imported_is_an_interruption(
    tmp_path: Path, number: signal.Signals
) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("the signal is ignored here, as below nohup, and stays so in what is started")
    with start(tmp_path, *SMALL) as running:
        running.wait_for(running.workdir)
        os.killpg(running.process.pid, number)  # as Ctrl-C and a closed window do
        result = running.finish()
    assert result.code == 130, result.err
    assert "cannot be imported" not in result.err
    assert result.left == []


def test_closed_stderr_costs_neither_the_text_nor_the_report(tmp_path: Path) -> None:
    command = f"{sys.executable} -m ddpdoctor check {' '.join([*SMALL, *APART])} --json report.json 2>&-"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.stdout.startswith("ddpdoctor ")
    assert "checks ran" in done.stdout.splitlines()[-1]
    assert done.returncode == (0 if "healthy" in done.stdout.partition("\n")[0] else 1)
    assert json.loads((tmp_path / "report.json").read_text())["world"]["size"] == 2


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no PYTHONSAFEPATH")
def test_files_of_the_working_directory_do_not_hide_modules(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("ddpdoctor")
    if not program.exists():
        pytest.skip("the console script is not installed beside this Python")
    for name in ("random", "torch", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('found in the working directory')\n")
    (tmp_path / "mine.py").write_text(
        "import os, torch\n"
        "def make():\n"
        "    assert 'PYTHONSAFEPATH' not in os.environ\n"
        "    return torch.nn.Linear(2, 2), torch.ones(1, 2)\n"
    )
    done = subprocess.run(
        [program, "check", "--nproc", "2", "--only", "rendezvous,ddp", "--model", "mine:make"],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mine:make" in done.stdout
