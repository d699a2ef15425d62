"""Which processes are the ranks that are watched, where a command runs more than one job."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ddpdoctor.watch.live import rank_rings
from ddpdoctor.watch.live.look import TICKS, Pulse
from ddpdoctor.watch.live.rank_rings import choose_job
from ddpdoctor.watch.readers.rings import Ring


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Ids of processes that are gone; all others live."""
    gone: set[int] = set()
    monkeypatch.setattr(rank_rings, "read_pulse", lambda pid, ticks: Pulse(pid not in gone))
    return gone


def ring(pid: int, rank: int, port: int = 29500) -> Ring:
    made = Ring(Path(f"{pid}-{pid}.ring"), pid, pid, rank=rank)
    made.meeting = ("none", "127.0.0.1", str(port))
    return made


def pids(rings: list[Ring]) -> list[int]:
    return [each.pid for each in choose_job(rings)]


def test_ranks_come_in_order(dead: set[int]) -> None:
    assert pids([ring(12, 2), ring(11, 1), ring(10, 0)]) == [10, 11, 12]
    dead.update((10, 11, 12))
    assert pids([ring(12, 2), ring(11, 1), ring(10, 0)]) == [10, 11, 12]


def test_of_jobs_one_after_the_other_the_newer_counts(dead: set[int]) -> None:
    dead.update((10, 11))
    assert pids([ring(10, 0), ring(11, 1), ring(20, 0), ring(21, 1)]) == [20, 21]
    dead.update((20, 21))
    assert pids([ring(20, 0), ring(21, 1), ring(10, 0), ring(11, 1)]) == [20, 21]


def test_what_had_ended_before_a_job_began_is_none_of_it(dead: set[int], tmp_path: Path) -> None:
    """A script that spawns one job after the other: the new rank 0 is there, the new rank 1 is not yet a rank."""
    old, new = ring(10, 1), ring(20, 0)
    old.path = tmp_path / "10-10.ring"
    old.path.with_suffix(".jsonl").touch()
    dead.add(10)
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    new.ticks = int((since_boot + 5) * TICKS)
    assert pids([old, new]) == [20]
    new.ticks = int((since_boot - 5) * TICKS)
    assert pids([old, new]) == [20, 10]


def test_of_jobs_at_once_the_larger_counts_and_they_are_not_mixed(dead: set[int]) -> None:
    training = [ring(10 + rank, rank) for rank in range(4)]
    evaluation = [ring(20 + rank, rank, port=29501) for rank in range(2)]
    assert pids([*training, *evaluation]) == [10, 11, 12, 13]


def test_jobs_at_once_that_cannot_be_told_apart_are_not_judged(dead: set[int]) -> None:
    assert pids([ring(10, 0), ring(11, 1), ring(20, 0), ring(21, 1)]) == []
