"""What ranks wrote of the time of their steps, folded: who is late, and what communication nothing hides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.evidence import Frame
from ddpdoctor.evidence.training.timing import BACKWARD, DATA, RankTimes, Timing
from ddpdoctor.facts.training_rows import choose_sampled
from ddpdoctor.watch.readers.records import Shortener
from ddpdoctor.watch.readers.timing import fold_timing

LINE = (Frame("train.py", 9, "main"),)
SHORTENER = Shortener(Path("/app"))
WALL_NS, MONO_NS = 1_700_000_000_000_000_000, 5_000_000_000_000


def event(
    late_us: int = 0,
    steps: int = 32,
    width: int = 1,
    looks: list[list[int]] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A rank whose steps take 100 ms and that comes to its backward 50 ms after their beginning, or later."""
    columns = []
    for first in range(1, steps + 1, width):
        sampled = choose_sampled(first, width)
        came = 4_000_000 + 100_000 * sampled + 50_000 + late_us
        spent = [1000, late_us, 0, 20_000, 70_000 - late_us, 9000, 0]
        columns.append([first, width, width, *(each * width for each in spent), sampled, 1, came])
    return {
        "wall_ns": WALL_NS,
        "mono_ns": MONO_NS,
        "steps": steps,
        "width": width,
        "bytes": 4 << 20,
        "device": "cpu",
        "members": None,
        "loaders": [[1, 1000 + late_us]],
        "columns": columns,
        "looks": looks if looks is not None else [],
        **more,
    }


def fold(*events: Any, world: int = 0) -> Timing:
    return fold_timing(dict(enumerate(events)), world or len(events), lambda rank, place: LINE, SHORTENER)


def lags(timing: Timing) -> list[set[float | None]]:
    return [set(rank.lags) for rank in timing.ranks]


def test_who_comes_later_than_the_others_is_late() -> None:
    timing = fold(event(), event(3000), event(40_000), event(1000))
    assert lags(timing) == [{0}, {0.002}, {0.039}, {0}]
    late: RankTimes = timing.ranks[2]
    assert late.spend(DATA) == pytest.approx(0.04)
    assert late.spend(BACKWARD) == pytest.approx(0.03)
    assert late.step_s == pytest.approx(0.1)
    assert timing.loader == LINE
    assert timing.reductions == 1


def test_ranks_that_kept_different_columns_are_compared_by_the_wider_ones() -> None:
    timing = fold(event(steps=62), event(20_000, steps=64, width=2))
    assert timing.width == 2
    assert timing.columns == tuple(range(1, 64, 2))
    assert timing.ranks[0].step_s == pytest.approx(0.1)
    assert lags(timing) == [{0, None}, {0.02, None}]
    assert timing.ranks[1].lags.index(None) == 31  # the rank that made fewer steps


def test_ranks_that_do_not_meet_are_not_compared() -> None:
    apart = fold(event(members=[0]), event(40_000, members=[1]))
    assert lags(apart) == [{None}, {None}]
    met = event(40_000)
    for column in met["columns"]:
        column[11] = 2
    assert lags(fold(event(), met)) == [{None}, {None}]
    other_clock = fold(event(), event(40_000), event(mono_ns=MONO_NS + 5_000_000_000))
    assert lags(other_clock) == [{0}, {0.04}, {None}]


def test_the_rank_that_waits_least_tells_what_is_communication() -> None:
    early = [[n, 5000, 4000, 60_000, 61_000, 200] for n in (*range(4, 11), 100, 200, 300)]
    late = [[n, 45_000, 44_000, 20_000, 21_000, 300] for n in (*range(4, 11), 100, 200, 300)]
    timing = fold(event(looks=early), event(looks=late))
    assert timing.iterations == 10
    assert timing.exposed_s == pytest.approx(0.02)
    assert timing.reduction_s == pytest.approx(0.021)
    assert timing.ranks[1].slower_s == pytest.approx(0.04)
    assert timing.ranks[0].exposed_s == pytest.approx(0.06)
    assert timing.ranks[0].after_s == pytest.approx(0.0002)
    few = fold(event(looks=early[:9]), event(looks=late[:9]))
    assert few.ranks[1].slower_s is None


def test_rows_of_exchanges_are_averaged_over_the_calls() -> None:
    sent: dict[str, Any] = {"routings": 40, "routed": 46_080, "frames": [["/app/moe.py", 28, "exchange"]]}
    timing = fold(event(), event(**sent))
    assert [(rank.rows, rank.routed_at) for rank in timing.ranks] == [
        (None, ()),
        (1152.0, (Frame("moe.py", 28, "exchange"),)),
    ]


def test_of_large_jobs_few_columns_are_kept() -> None:
    timing = fold(event(), event(40_000), world=16_384)
    assert len(timing.columns) == 16
    assert timing.width == 2
    assert timing.ranks[1].spend(DATA) == pytest.approx(0.04)


@pytest.mark.parametrize(
    "damaged",
    [
        {"width": 3},
        {"width": 0},
        {"columns": [[1, 1, 1, *["x"] * 9]]},
        {"columns": 5},
        {"looks": 5},
        {"wall_ns": None},
        {"bytes": 10**400},
        {"routings": "x"},
        {"routings": 2, "routed": [3]},
        {"looks": [[1, 10**400, 1, 1, 1, 1]]},
    ],
)
def test_what_is_damaged_is_refused(damaged: dict[str, Any]) -> None:
    with pytest.raises((KeyError, ValueError, TypeError)):
        fold(event(), event(**damaged))


def test_nothing_is_made_of_nothing() -> None:
    assert fold(event(columns=[])) == Timing()
    assert fold_timing({}, 2, lambda rank, place: (), SHORTENER) == Timing()


def waiting(*steps: tuple[int, int, int, int], **more: Any) -> dict[str, Any]:
    """A rank that was looked at in steps: number, and microseconds of all-gathers, reductions and other stages."""
    rows = [[number, 100_000, gather, reduce, stage, 1 << 20] for number, gather, reduce, stage in steps]
    return event(waits=rows, **more)


def test_what_steps_wait_for_shards_is_of_the_rank_that_waits_least_in_each() -> None:
    timing = fold(
        waiting((1, 40_000, 10_000, 0), (2, 90_000, 5000, 0), (3, 1, 1, 0), waited=[["layers.0", 0, 6000], ["layers.0", 1, 3000]]),
        waiting((1, 60_000, 10_000, 0), (2, 30_000, 20_000, 0), (4, 1, 1, 0)),
    )  # fmt: skip
    assert timing.shards is not None
    assert timing.shards.steps == 2
    assert timing.shards.gather_s == pytest.approx(0.035)
    assert timing.shards.reduce_s == pytest.approx(0.015)
    assert timing.shards.gathered_bytes == 1 << 20
    assert timing.shards.modules == (("layers.0", 0.003),)
    assert timing.pipeline is None


def test_ranks_that_no_step_has_in_common_are_not_compared() -> None:
    assert fold(waiting((1, 5000, 5000, 0)), waiting((2, 5000, 5000, 0))).shards is None
    assert fold(event(), event()).shards is None


def test_waiting_for_stages_is_told_by_rank() -> None:
    timing = fold(
        waiting((1, 0, 0, 70_000), (2, 0, 0, 80_000), pipeline=[2, 1, 4, 0], waited_at=[["/app/train.py", 7, "main"]]),
        waiting((1, 0, 0, 5000), (5, 0, 0, 5000), (9, 0, 0, 9000), pipeline=[2, 1, 4, 1]),
    )  # fmt: skip
    found = timing.pipeline
    assert found is not None
    assert (found.stages, found.held, found.micro_batches, found.steps) == (2, 1, 4, 2)
    assert [(each.stage, each.waiting_s) for each in found.ranks] == [(0, 0.075), (1, 0.005)]
    assert found.ranks[0].busy_s == pytest.approx(0.025)
    assert found.frames[0].line == 7
    assert timing.shards is None
