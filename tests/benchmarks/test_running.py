"""That the benchmark of ``run`` measures from the start of the command to the script."""

from __future__ import annotations

import os
import subprocess
import sys
import time

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
