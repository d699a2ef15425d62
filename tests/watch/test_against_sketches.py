"""Sketches: pieces add up, differences keep their size, padding counts for nothing; and what is made of two runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.watch.against.gaps import compare
from ddpdoctor.watch.against.sketches import read_steps
from ddpdoctor.watch.commandline import split_arguments
from ddpdoctor.watch.launch.reference import Enough, Plan, explain_impossible, find_widening, make_split
from tests.watch.injecting import INJECT, python

START = """
    import math, sys, torch
    sys.path.insert(0, sys.argv[1])
    from ddpdoctor_watch.training import sketches
"""


def run(folder: Path, script: str) -> None:
    done = python(folder, START + script, str(INJECT))
    assert done.returncode == 0, done.stderr


def test_pieces_add_up_factors_are_exact_and_differences_keep_their_size(tmp_path: Path) -> None:
    script = """
    torch.manual_seed(0)
    class DTensor:  # what is read of one
        def __init__(self, whole, axis, rank, count):
            step = -(-whole.shape[axis] // count)
            self._local_tensor = whole.narrow(axis, min(step * rank, whole.shape[axis]),
                max(0, min(step, whole.shape[axis] - step * rank))).clone()
            self.shape, self.placements = whole.shape, (Shard(axis),)
            self.device_mesh, self.rank, self.count = self, rank, count
        def get_coordinate(self): return [self.rank]
        def size(self, _): return self.count
        def dim(self): return len(self.shape)
    class Shard:
        def __init__(self, axis): self.dim = axis
    for shape in ((7,), (5, 3), (4, 3, 6), (1,)):
        whole = torch.randn(shape)
        told = sketches.sketch(whole)
        for axis in range(len(shape)):
            parts = [sketches.sketch(DTensor(whole, axis, rank, 3)) for rank in range(3)]
            assert all(abs(sum(each) - one) < 1e-12 for each, one in zip(zip(*parts), told)), (shape, axis)
    one, other = torch.randn(300, 200), torch.randn(300, 200)
    a, b = sketches.sketch(one), sketches.sketch(other)
    assert sketches.sketch(one * 4) == [4 * each for each in a]
    sketches._CHUNK = 1000
    assert all(abs(x - y) < 1e-9 for x, y in zip(a, sketches.sketch(one)))
    size = math.dist(a, b) / float((one - other).norm())
    assert 0.6 < size < 1.5, size
    changed = one.clone(); changed[3, 5] += 1
    assert abs(math.dist(a, sketches.sketch(changed)) - 1) < 1e-6
    swapped = one.clone(); swapped[0], swapped[1] = one[1], one[0]
    assert math.dist(a, sketches.sketch(swapped)) > 5
    assert sketches.sketch(torch.tensor(2.0)) is not None
    assert sketches.sketch(torch.arange(3)) is None and sketches.sketch(None) is None
    """
    run(tmp_path, script)


def test_a_sample_is_the_same_whatever_it_was_padded_to(tmp_path: Path) -> None:
    script = """
    ids = torch.randint(1, 99, (70, 9))
    told = sketches.digest_samples(ids)
    assert len(set(told)) == 70
    padded = torch.cat([ids, torch.zeros(70, 4, dtype=torch.long)], 1)
    assert sketches.digest_samples(padded) == told
    assert sketches.digest_samples(ids.flip(0)) == told[::-1]
    assert sketches.digest_samples(ids.flip(1)) != told
    assert len(sketches.digest_samples(torch.rand(5))) == 1
    for dtype in (torch.bfloat16, torch.float64, torch.bool, torch.uint8, torch.complex64):
        assert len(sketches.digest_samples(torch.ones(3, 2).to(dtype))) == 3, dtype
    """
    run(tmp_path, script)


def test_batches_of_a_reference_are_larger_once(tmp_path: Path) -> None:
    script = """
    from torch.utils.data import BatchSampler, DataLoader, SequentialSampler
    loader = DataLoader(range(20), batch_size=2, drop_last=True)
    assert [len(batch) for batch in loader] == [6, 6, 6] and len(loader) == 3
    again = DataLoader(loader.dataset, batch_sampler=loader.batch_sampler)  # as Accelerate does
    assert [len(batch) for batch in again] == [6, 6, 6]
    class Own(BatchSampler): pass
    own = DataLoader(range(20), batch_sampler=Own(SequentialSampler(range(20)), 2, False))
    assert len(next(iter(own))) == 2
    """
    variables = {"DDPDOCTOR_AGAINST": "reference", "DDPDOCTOR_AGAINST_BATCH": "3"}
    done = python(tmp_path, script, variables=variables)
    assert done.returncode == 0, done.stderr


def step(rank: int, number: int, rows: list[Any], samples: list[str], **more: Any) -> dict[str, Any]:
    return {
        "event": "compared",
        "rank": rank,
        "optimizer": 1,
        "class": "SGD",
        "step": number,
        "rows": rows,
        "digests": samples,
        "losses": [1.0 + rank],
        "rates": [0.1],
        **more,
    }


def keep(folder: Path, *events: Any) -> Path:
    folder.mkdir(exist_ok=True)
    for place, event in enumerate(events):
        text = event if isinstance(event, str) else json.dumps(event)
        (folder / f"{place}.jsonl").write_text(text + "\n")
    return folder


def whole(value: float, gradient: float, shape: tuple[int, ...] = (2,)) -> list[Any]:
    piece = [list(shape), [0] * len(shape)]
    return ["w", list(shape), "float32", piece, [value] * 32, [gradient] * 32]


def half(place: int, value: float, gradient: float) -> list[Any]:
    return ["w", [2], "float32", [[1], [place]], [value] * 32, [gradient] * 32]


def test_shards_of_the_job_are_put_together(tmp_path: Path) -> None:
    job = keep(tmp_path / "a", step(0, 1, [half(0, 1, 2)], ["x"]), step(1, 1, [half(1, 0, 6)], ["y"]))
    reference = keep(tmp_path / "b", step(0, 1, [whole(1, 2)], ["x", "y"]))
    (gap,) = compare(read_steps(job), read_steps(reference))
    assert [(each.name, each.difference) for each in gap.values] == [("", 0.0), ("w", 0.0)]
    assert gap.gradients[1].factor == 4.0
    assert gap.gradients[1].residual == 0.0
    assert gap.samples is not None
    assert (gap.samples.job_distinct, gap.samples.shared) == (2, 2)
    assert (gap.job_losses, gap.reference_losses) == ((1.0, 2.0), (1.0,))
    assert gap.uncompared == {}


def test_what_cannot_be_put_together_is_named(tmp_path: Path) -> None:
    reference = read_steps(keep(tmp_path / "b", step(0, 1, [whole(1, 2)], [])))
    apart = keep(tmp_path / "a", step(0, 1, [whole(1, 2)], []), step(1, 1, [whole(1, 3)], []))
    (gap,) = compare(read_steps(apart), reference)
    assert gap.apart == ("w",)
    assert "ranks hold different ones" in gap.uncompared["w"]
    lacking = keep(tmp_path / "c", step(0, 1, [half(0, 1, 2)], []))
    (gap,) = compare(read_steps(lacking), reference)
    assert "not all parts" in gap.uncompared["w"]
    other = keep(tmp_path / "d", step(0, 1, [whole(1, 2, (4,))], []))
    (gap,) = compare(read_steps(other), reference)
    assert "shape is [4] here and [2]" in gap.uncompared["w"]


def test_damaged_events_are_left_out(tmp_path: Path) -> None:
    bad = step(0, 1, [["w", 5, "float32", None, "x", None]], [])
    assert read_steps(keep(tmp_path / "a", "{", bad, '{"event":"compared"}')) == {}
    assert read_steps(tmp_path / "nowhere") == {}


@pytest.mark.parametrize(
    ("job", "reference", "times"), [("abcd", "ab", 2), ("abc", "ab", 1), ("ab", "ab", 1)]
)
def test_batches_are_widened_by_whole_factors_only(
    tmp_path: Path, job: str, reference: str, times: int
) -> None:
    gaps = compare(
        read_steps(keep(tmp_path / "a", step(0, 1, [whole(1, 2)], list(job)))),
        read_steps(keep(tmp_path / "b", step(0, 1, [whole(1, 2)], list(reference)))),
    )
    assert find_widening(gaps) == times


def test_a_reference_is_long_enough_when_each_rank_has_made_its_last_step(tmp_path: Path) -> None:
    folder = keep(tmp_path / "a", step(0, 4, [], []), step(1, 8, [], []))
    text = '{"event":"compared","wall_ns":1,"optimizer":1,"step":%d,"rows":[]}'
    (folder / "0.jsonl").write_text(text % 4 + "\n")
    (folder / "1.jsonl").write_text(text % 8 + "\n")
    enough = Enough(folder, 2)
    assert not enough()
    (folder / "0.jsonl").write_text(text % 4 + "\n" + text % 8 + "\n")
    assert enough()


@pytest.mark.parametrize(
    ("words", "launcher", "target"),
    [
        (
            ["--nproc", "4", "train.py", "--lr", "1"],
            ["--nproc-per-node", "1"],
            ["train.py", "--lr", "1", "--tp", "1"],
        ),
        (
            ["--standalone", "--nproc_per_node=4", "-m", "pkg.train"],
            ["--nproc-per-node", "1", "--standalone", "-m"],
            ["pkg.train", "--tp", "1"],
        ),
    ],
)
def test_the_launch_of_a_reference(words: list[str], launcher: list[str], target: list[str]) -> None:
    made = make_split(split_arguments(words, (), ()), Plan(1, ("--tp", "1")))
    assert (list(made.torchrun), list(made.target)) == (launcher, target)


def test_what_allows_no_reference_is_said() -> None:
    split = split_arguments(["train.py"], (), ())
    assert explain_impossible(split, 1, stdin=None, interrupted=False) is None
    assert "several nodes" in str(explain_impossible(split, 2, stdin=None, interrupted=False))
    assert "interrupted" in str(explain_impossible(split, 1, stdin=None, interrupted=True))
    assert "failed" in str(explain_impossible(split, 1, stdin=None, failed=True))
    command = split_arguments(["--", "python", "train.py"], (), ())
    assert "launches its own ranks" in str(explain_impossible(command, 1, stdin=None, interrupted=False))
