"""That the benchmark of output writes what it says and refuses output that was lost."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import output
from benchmarks.figures import BenchmarkError
from benchmarks.writing import BLOCK, make_block


def test_what_is_written_is_whole_lines_of_a_log() -> None:
    block = make_block()
    assert BLOCK <= len(block) < 2 * BLOCK
    assert block.endswith(b" samples/s\n")
    assert all(b"loss=" in line for line in block.splitlines())


def test_output_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        output, "make_command", lambda watched, script, folder, nproc, *told: (sys.executable, script, *told)
    )
    written = output.write_once("itself", False, tmp_path, 3)
    assert 0 < written.writing_s < written.whole_s


def test_lost_output_is_no_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "seconds").write_text("1.0")
    monkeypatch.setattr(output, "make_command", lambda *_: (sys.executable, "-c", "print('x' * 1000)"))
    with pytest.raises(BenchmarkError, match=r"let 0\.001001 of 2 MB through"):
        output.write_once("itself", False, tmp_path, 2)
