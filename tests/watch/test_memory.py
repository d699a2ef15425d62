"""Sizes of watched processes, read from beside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddpdoctor.watch.live import memory
from ddpdoctor.watch.live.memory import MemoryWatch

HOLDING = """
held = bytearray(60_000_000)
del held
print("ready", flush=True)
input()
"""


def start(folder: Path) -> subprocess.Popen[str]:
    """Start a process that has held 60 MB, and name a file as the process itself would."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    started = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
    (folder / f"{process.pid}-{started}.jsonl").touch()
    return process


def look(watch: MemoryWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SAMPLE_S", 0.0)
    watch.look()


def test_a_process_is_known_by_its_file_and_its_peak_is_the_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(tmp_path)
    watch = MemoryWatch(tmp_path)
    try:
        look(watch, monkeypatch)
        assert watch.peak[process.pid] > 60_000_000
        assert 0 < watch.resident[process.pid] < watch.peak[process.pid]
    finally:
        process.communicate("\n")
    seen = dict(watch.resident)
    look(watch, monkeypatch)
    assert watch.resident == seen  # what was last seen stays
    assert watch.shm is not None


def test_another_process_with_the_same_number_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(tmp_path)
    try:
        (own,) = tmp_path.iterdir()
        own.rename(tmp_path / f"{process.pid}-1.jsonl")
        watch = MemoryWatch(tmp_path)
        look(watch, monkeypatch)
        assert watch.peak == {}
    finally:
        process.communicate("\n")


def test_a_sample_is_taken_when_it_is_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SAMPLE_S", 3600.0)
    watch = MemoryWatch(tmp_path / "nothing yet")
    watch.look()
    process = start(tmp_path)
    watch.folder = tmp_path
    try:
        watch.look()
        assert watch.resident == {}
        watch._next = 0.0
        watch.look()
        assert process.pid in watch.resident
    finally:
        process.communicate("\n")
