"""Different numbers of batches are told while the job runs, once, and only where ranks train together."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.evidence.training.fingerprints import Training
from ddpdoctor.judge import Registry
from ddpdoctor.watch.live import uneven
from ddpdoctor.watch.live.judging import judge_loaders
from ddpdoctor.watch.live.uneven import LoaderWatch
from ddpdoctor_checks.training import find_uneven_loaders


class Job:
    """Journals of made-up ranks, and a watch beside them."""

    def __init__(self, folder: Path, world: int) -> None:
        self.folder, self.world = folder, world
        self.told: list[str] = []
        self.registry = Registry()
        self.registry.add(find_uneven_loaders)
        for rank in range(world):
            self.write(rank, {"event": "start", "role": "rank", "rank": rank, "host": "a"})
            self.write(rank, {"event": "init", "rank": rank, "world_size": world, "backend": "gloo"})
        self.watch = LoaderWatch(folder, folder, self.tell)

    def tell(self, training: Training) -> bool:
        found = judge_loaders(training, self.registry)
        if found is not None:
            self.told.append(found.evidence[0].text)
        return found is not None

    def write(self, rank: int, *events: dict[str, Any]) -> None:
        with (self.folder / f"{100 + rank}-{rank + 1}.jsonl").open("a") as file:
            for event in events:
                file.write(json.dumps({**event, "wall_ns": 1, "mono_ns": 1}, separators=(",", ":")) + "\n")

    def load(self, lengths: Iterable[int | None]) -> None:
        frames = [[str(self.folder / "train.py"), 25, "train"]]
        for rank, length in enumerate(lengths):
            self.write(rank, {"event": "loader", "number": 1, "place": 1, "length": length, "frames": frames})

    def train(self, *, joining: bool = False) -> None:
        batch = {"event": "batch", "model": 1, "loader": 1, "epoch": 1, "index": 1, "print": None, "shapes": [[4]],
                 "joining": joining}  # fmt: skip
        wrapper = {"number": 1, "class": "Net", "ranks": list(range(self.world)), "frames": []}
        table = {"event": "tensors", "optimizer": 1, "table": 1, "step": 1, "class": "SGD", "models": {"1": "Net"},
                 "rows": [], "wrappers": [wrapper], "frames": []}  # fmt: skip
        for rank in range(self.world):
            self.write(rank, batch, table)


def test_different_lengths_are_told_once_while_ranks_train(tmp_path: Path) -> None:
    job = Job(tmp_path, 3)
    job.load([10, 10, 12])
    assert job.watch.look()
    assert job.told == []  # it may be an evaluation
    job.train()
    assert not job.watch.look()
    assert job.told == ["length of the DataLoader: 10 batches on ranks 0-1 and 12 batches on rank 2"]
    assert job.watch.look()  # nothing new


@pytest.mark.parametrize(
    ("lengths", "joining"),
    [([10, 10, 10], False), ([10, 10, 12], True), ([10, None, 12], False)],
    ids=["equal", "Join", "not known"],
)
def test_lengths_that_are_no_fault(tmp_path: Path, lengths: list[int | None], joining: bool) -> None:
    job = Job(tmp_path, 3)
    job.load(lengths)
    job.train(joining=joining)
    assert job.watch.look()
    assert job.told == []


def test_a_rank_that_has_not_come_so_far_is_waited_for(tmp_path: Path) -> None:
    job = Job(tmp_path, 3)
    job.load([10, 12])
    job.train()
    assert job.watch.look()
    assert job.told == []


def test_a_long_journal_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uneven, "PIECE", 600)
    job = Job(tmp_path, 2)
    job.write(0, {"event": "other", "text": "x" * 2000})
    job.load([10, 12])
    job.train()
    assert any(not job.watch.look() for _ in range(12))
    assert len(job.told) == 1
