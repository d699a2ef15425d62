"""Marked tests run as jobs: what passes, what fails, and with which words."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unmeasured import unmeasured

HEAD = """import pytest
import torch
import torch.distributed as dist


@pytest.fixture
def group():
    dist.init_process_group("gloo")
    yield dist.group.WORLD
    dist.destroy_process_group()
"""
SUM = """

@pytest.mark.ddpdoctor(nproc=2)
def test_sum(group):
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total == 2
"""
WRONG = """

@pytest.mark.ddpdoctor(nproc=2)
def test_wrong(group):
    total = torch.ones(1)
    if dist.get_rank() == 1:
        assert total == 5, "label 9917"
    dist.all_reduce(total)
"""
HANG = """

@pytest.mark.ddpdoctor(nproc=2)
def test_hang(group):
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))
    else:
        dist.barrier()
"""


def run(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_ranks.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", *options],
        cwd=folder,
        env=unmeasured(),
        capture_output=True,
        text=True,
        check=False,
    )


def place(text: str, folder: Path) -> str:
    lines = (folder / "test_ranks.py").read_text().splitlines()
    return f"test_ranks.py:{next(number for number, line in enumerate(lines, 1) if text in line)}"


def test_marked_tests_are_skipped_unless_asked_for(tmp_path: Path) -> None:
    done = run(tmp_path, HEAD + SUM)
    assert done.returncode == 0
    assert "runs on several ranks: pytest --ddpdoctor" in done.stdout


def test_failure_is_the_verdict_and_the_others_pass(tmp_path: Path) -> None:
    done = run(tmp_path, HEAD + SUM + WRONG + "\n\ndef test_plain():\n    pass\n", "--ddpdoctor")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 2 passed" in done.stdout
    assert re.search(r"ERR001 exception-uncaught", done.stdout)
    assert re.search(rf"Rank 1 failed first, .*\s+(at )?{place('total == 5', tmp_path)} in", done.stdout)
    assert "label 9917" in done.stdout
    assert "RanksFailed" not in done.stdout
    assert not list(tmp_path.glob("ddpdoctor-runs"))


@pytest.mark.long
def test_hang_fails_with_the_line_of_each_rank(tmp_path: Path) -> None:
    done = run(tmp_path, HEAD + HANG, "--ddpdoctor")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed" in done.stdout
    assert "COL003 collective-mismatch" in done.stdout
    assert place("all_reduce", tmp_path) in done.stdout
    assert place("barrier", tmp_path) in done.stdout


def test_mark_with_unknown_arguments_is_a_usage_error(tmp_path: Path) -> None:
    done = run(tmp_path, HEAD + SUM.replace("nproc=2", "ranks=2"), "--ddpdoctor")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "{'ranks': 2}" in done.stderr + done.stdout
