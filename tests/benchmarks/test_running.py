"""That the benchmark of ``run`` measures from the start of the command to the script."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import running
from benchmarks.figures import BenchmarkError
from benchmarks.timing import Run


def test_the_script_tells_how_long_ago_the_command_was_started() -> None:
    command = f"sleep 0.5; {sys.executable} {running.SCRIPT}; true"
    began = time.monotonic()
    done = subprocess.run(
        ["sh", "-c", command],
        env={**os.environ, "BENCHMARK_PID": str(os.getpid())},
        capture_output=True,
        text=True,
        check=True,
    )
    assert 0.5 <= running._read_start(Run(1.0, 1.0, done.stdout)) <= time.monotonic() - began + 0.02


def test_a_script_that_says_nothing_is_not_measured() -> None:
    with pytest.raises(BenchmarkError, match="said nothing"):
        running._read_start(Run(1.0, 1.0, ""))


def test_ranks_are_told_from_what_runs_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = (
        "import os, sys, time; from pathlib import Path; here = Path(sys.argv[1]); held = b'x' * 50_000_000;"
        "(here / f'{os.getpid()}.rank').touch()\nwhile not (here / 'go').exists(): time.sleep(0.05)"
    )
    agent = (
        "import subprocess, sys\nchildren = [subprocess.Popen([sys.executable, '-c', *sys.argv[1:]]) for _ in range(2)]\n"
        "sys.exit(sum(child.wait() for child in children))"
    )
    monkeypatch.setattr(running, "SETTLING_S", 0.0)
    monkeypatch.setattr(
        running,
        "make_command",
        lambda watched, script, folder, nproc, here: (sys.executable, "-c", agent, rank, here),
    )
    memory = running._measure_memory(True, tmp_path)
    assert memory.rank > 50
    assert 0 < memory.root < 50
    assert memory.beside == pytest.approx(memory.root)


def test_ranks_that_do_not_come_up_are_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "make_command", lambda *_: (sys.executable, "-c", "pass"))
    with pytest.raises(BenchmarkError, match="did not come up"):
        running._measure_memory(True, tmp_path)
