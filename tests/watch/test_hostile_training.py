"""What ranks wrote of their training where it is damaged, made up, or much."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import typing
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.facts.events import EVENTS
from ddpdoctor.watch.readers import events
from tests.unmeasured import unmeasured
from tests.watch.test_collect import collect, run, start, write

__all__ = ["run"]


def event(name: str, second: int, /, **values: Any) -> str:
    """As the hook writes it, without spaces."""
    told = {"event": name, "wall_ns": second * 10**9, "mono_ns": second * 10**9, **values}
    return json.dumps(told, separators=(",", ":"))


def table(names: list[str], **more: Any) -> str:
    rows = [[name, "parameter", 1, [2, 2], "float32", True, 1, None] for name in names]
    values = {"optimizer": 1, "table": 1, "step": 1, "class": "SGD", "models": {"1": "Net"}, "rows": rows}
    return event("tensors", 2, **{**values, "left_out": 0, "wrappers": [], "frames": [], **more})


def step(number: int, numbers: list[Any], **more: Any) -> str:
    values = {"optimizer": 1, "table": 1, "step": number, "final": False, "count": len(numbers)}
    told = {
        "values": json.dumps(numbers)[:40],
        "others": "0",
        "each": numbers,
        "gradients": "1",
        "missing": [],
    }
    return event("step", 2 + number, **{**values, **told, "each_gradient": numbers, "wrappers": [], **more})


def times(**more: Any) -> str:
    row = [1, 1, 1, *[1000] * 7, 1, 1, 5_000_000]
    values = {"columns": [row], "looks": [], "loaders": [], "device": "cpu", "members": None, **more}
    return event("times", 9, **{"steps": 1, "width": 1, "bytes": 100, **values})


def prints(count: int, rank: int = 0, differing: int = -1) -> list[Any]:
    return [[f"{place:x}{rank if place == differing else ''}", 1.5] for place in range(count)]


HOSTILE = {
    "wrong types": [
        table(["a"], rows="x"), table(["a"], rows=[1, 2]), table(["a"], models=3), step(1, [["a", "x"]]),
        step(2, [7]), step(3, [], wrappers=7), step(4, [], wrappers=[[1]]), step(5, [], count="x"),
        event("batch", 3, model="x"), event("batch", 3, model=1, loader=1, epoch=1, index=1, print="a", shapes=[[2]], wholes=["1 2", 3]), event("epoch", 3, loader=1), event("watching", 3, elapsed_ns="x"),
        event("abstained", 3), event("loader", 3, place=[1]), step(6, [], states=7), step(7, [], states=[[1]]),
        step(8, [], states=[["a", "b"]], each_state=3), event("load", 3, number=[1]), event("load", 3, number=1),
        event("loaded", 3), event("resume", 3, names=[1], counter=2), event("resumed", 3), event("seed", 3, value=[], frames=3), event("seed", 3), event("gathered", 3, **{"class": 1}, shape=["x"]), event("nonfinite", 3, what=[]),
        event("nonfinite", 3, what="gradient", number=1, model={}, name=[], value=2), event("finite", 3, number=None),
        times(columns=[1]), times(columns=[[]], looks=[[]]), times(looks=["x"]), times(loaders=[[1]]), times(width="x"),
        event("search", 3, number=1, iteration=1, unused=1, each_ns=-5, apart_ns="x"), event("losses", 3, since={}),
    ],
    "huge numbers": [
        table(["a"], table=10**30), step(10**30, prints(1)), step(1, [["f" * 100_000, 1e308]]),
        event("watching", 3, elapsed_ns=1, spent_ns=10**30), event("epoch", 3, loader=1, number=10**40),
        times(bytes=10**400), times(columns=[[1, 1, 1, *[10**400] * 7, 1, 1, 10**400]]),
    ],
    "a million tensors": [
        event("tensors", 2, optimizer=1, table=1, rows=[0] * 1_000_000, models={}, **{"class": "SGD"}),
        event("step", 3, optimizer=1, table=1, step=1, count=10**6, each=[0] * 1_000_000),
        event("step", 3, optimizer=1, table=1, step=2, count=10**6, missing=[0] * 1_000_000),
    ],
    "nothing but brackets": ["[" * 100_000, '{"event":"step","each":' + "[" * 5000],
}  # fmt: skip


@pytest.mark.unmeasured
@pytest.mark.parametrize("name", HOSTILE)
def test_made_up_events_cost_nothing_but_themselves(run: Path, name: str) -> None:
    good = [table(["a", "b"]), step(1, prints(2)), step(2, prints(2))]
    write(run, 7, start(7, 0), *HOSTILE[name], *good)
    write(run, 8, start(8, 1), *good)
    began = time.monotonic()
    found = collect(run)
    assert time.monotonic() - began < 20
    assert {process.rank for process in found.processes} == {0, 1}
    if name != "nothing but brackets":
        assert any("damaged" in text for text in found.lost), found.lost
    for training in found.training:
        assert set(training.ranks) == {0, 1}


def test_more_events_than_the_hook_writes_are_not_kept(run: Path) -> None:
    many = [step(number, []) for number in range(1, 6000)]
    write(run, 7, start(7, 0), table(["a"]), *many)
    write(run, 8, start(8, 1), table(["a"]), step(1, prints(1)))
    found = collect(run)
    assert any(text == "1999 events of 7-1.jsonl are damaged" for text in found.lost), found.lost
    assert len(found.training[0].steps) <= 80


def test_two_processes_of_one_rank_are_not_compared(run: Path) -> None:
    lines = [table(["a"]), step(1, prints(1))]
    write(run, 7, start(7, 0), *lines)
    write(run, 8, start(8, 0), *lines)
    assert collect(run).training == []


def test_only_the_last_attempt_counts(run: Path) -> None:
    lines = [table(["a"]), step(1, prints(1))]
    for pid, rank, attempt in ((7, 0, 0), (8, 1, 0), (9, 0, 1), (10, 1, 1)):
        write(run, pid, start(pid, rank, attempt=attempt), *lines)
    (training,) = collect(run).training
    assert set(training.ranks) == {0, 1}


def test_tensors_are_listed_of_a_look_that_has_them_only(run: Path) -> None:
    """Where there was no room for each tensor, the first step that differs names none; the last one does."""
    for pid, rank in ((7, 0), (8, 1)):
        short = {"each": None, "each_gradient": None}
        write(
            run, pid, start(pid, rank), table(["a", "b"]), step(1, prints(2)),
            step(2, prints(2, rank, 1), values=f"2{rank}", **short),
            step(3, prints(2, rank, 1), values=f"3{rank}", final=True, each_gradient=None),
        )  # fmt: skip
    (training,) = collect(run).training
    assert [[tensor.name for tensor in look.tensors] for look in training.steps] == [[], [], ["b"]]


LARGE = """
import sys, time
from pathlib import Path
from ddpdoctor.facts.events import EVENTS
from ddpdoctor.watch.readers import events
from ddpdoctor.watch.readers.collect import collect_run

def most():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024

before, began = most(), time.process_time()
found = collect_run(Path(sys.argv[1]))
(training,) = found.training
print(most() - before, time.process_time() - began, len(training.steps), training.steps[-1].differing)
"""


def test_many_ranks_with_many_tensors_are_folded_in_little_memory(run: Path) -> None:
    """64 ranks with 1,000 tensors and 20 looks, one of which differs on each rank from the tenth on."""
    names = [f"encoder.layers.{number}.attention.weight" for number in range(1000)]
    first = table(names)
    same = [step(1 << number, prints(1000)) for number in range(10)]
    for rank in range(64):
        apart = [
            step(1 << number, prints(1000, rank, 500), values=f"{number}-{rank}") for number in range(10, 20)
        ]
        write(run, 100 + rank, start(100 + rank, rank), first, *same, *apart)
    done = subprocess.run(
        [sys.executable, "-c", LARGE, str(run)],
        env=unmeasured(), capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    used, seconds, looks, differing = map(float, done.stdout.split())
    assert (looks, differing) == (20, 1)
    assert used < 50, f"{used} MB"
    assert seconds < 60


@pytest.mark.parametrize("name", sorted(EVENTS))
def test_numbers_that_are_bounded_are_whole_in_each_event(name: str) -> None:
    kinds = typing.get_type_hints(EVENTS[name])
    apart = {
        field: kind
        for field, kind in kinds.items()
        if field in events._BOUNDS and kind not in (int, int | None)
    }
    assert apart == {}  # a share of that name would be left out wherever it is read
