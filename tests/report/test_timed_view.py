"""The page's section of the time of steps: a bar for each rank, and how late ranks come."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.fingerprints import Training
from ddpdoctor.evidence.training.timing import PHASES, Pipeline, RankTimes, ShardTimes, StageTimes, Timing
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.html.overlap import view_overlaps
from ddpdoctor.report.html.timed import TimedView, view_timed
from ddpdoctor.testing import make_world


def rank(number: int, lag: float | None, columns: int = 32, **seconds: float) -> RankTimes:
    given = {"other": 0.001, "forward": 0.02, "backward": 0.07, "optimizer": 0.009, **seconds}
    return RankTimes(
        number,
        tuple(given.get(phase, 0.0) for phase in PHASES),
        (lag,) * columns,
        exposed_s=0.03,
        after_s=0.002,
    )


def world(*nodes: list[RankTimes], width: int = 1, columns: int = 32) -> Evidence:
    firsts = tuple(range(1, columns * width + 1, width))
    return dataclasses.replace(
        make_world(),
        training=tuple(
            Training(
                number,
                RankSet(each.rank for each in ranks),
                timing=Timing(columns * width, width, firsts, tuple(ranks), reductions=2.0),
            )
            for number, ranks in enumerate(nodes)
        ),
    )


def view(evidence: Evidence, caps: Caps | None = None) -> TimedView:
    found = view_timed(evidence, caps or Caps())
    assert found is not None
    return found


def test_a_step_is_parted_and_adds_up() -> None:
    found = view(world([rank(0, 0.0), rank(1, 0.05, data=0.05)]))
    words = [each for _, each in found.legend]
    assert words == ["data", "forward", "backward", "exposed communication", "optimizer", "other Python"]
    first, second = found.rows
    assert first.step == "100 ms"
    # The 70 ms from a backward on hold two reductions that take 30 ms each, and twice 2 ms of Python behind it.
    assert dict(zip(words, first.parts, strict=True)) == {
        "data": "0 s",
        "forward": "20 ms",
        "backward": "6 ms",
        "exposed communication": "60 ms",
        "optimizer": "9 ms",
        "other Python": "5 ms",
    }
    assert (first.late, second.late) == ("0 s", "50 ms")
    widths = [float(each) for each in re.findall(r'width="([\d.]+)" height="6" class="p-', second.bar)]
    assert 99 < sum(widths) < 101  # the longest fills the line
    assert "A median step takes 125 ms" in found.summary


def test_lags_are_coloured_by_their_part_of_a_step() -> None:
    found = view(world([rank(0, 0.0), rank(1, 0.15), rank(2, 0.03)], width=4))
    assert found.lags is not None
    drawn = {css: path.count("M") for path, css in re.findall(r'<path d="([^"]*)" class="(q\d)"', found.lags)}
    assert drawn == {"q5": 32, "q0": 32, "q1": 32}
    assert "step 128" in found.lags
    assert "Largest median lag: rank 1 150 ms, rank 2 30 ms and rank 0 0 s" in found.lags


def test_nothing_is_drawn_of_what_is_not_known() -> None:
    assert view_timed(make_world(), Caps()) is None
    alone = view(world([rank(0, None)]))
    assert alone.lags is None
    assert alone.rows[0].late == "unknown"
    assert not alone.remembers


@pytest.mark.parametrize(
    "change",
    [
        {"columns": ()},
        {"steps": 0, "columns": (0,)},
        {"ranks": (RankTimes(0, (), (0.1,)), RankTimes(1, (0.1,) * 8, (0.1,)))},
        {"ranks": tuple(RankTimes(each, (float("nan"),) * 7, (float("nan"),)) for each in range(2))},
        {"ranks": tuple(RankTimes(each, (0.1,) * 7, (float("inf"),)) for each in range(2))},
    ],
    ids=["no columns", "no steps", "phases", "no numbers", "lags"],
)
def test_damaged_times_of_a_saved_report_leave_the_page_whole(change: dict[str, Any]) -> None:
    base = world([rank(0, 0.0), rank(1, 0.05)])
    (node,) = base.training
    timing = dataclasses.replace(node.timing, **change)
    found = view_timed(
        dataclasses.replace(base, training=(dataclasses.replace(node, timing=timing),)), Caps()
    )
    assert found is None or "nan" not in f"{found}".lower()


@pytest.mark.unmeasured
def test_many_ranks_are_folded_and_that_is_said() -> None:
    nodes = [[rank(8 * node + each, 0.0, 16) for each in range(8)] for node in range(2048)]
    nodes[700][3] = rank(5603, 0.06, 16, data=0.06)
    caps = Caps()
    found = view(world(*nodes, columns=16), caps)
    assert len(found.rows) == 32
    assert "rank 5603" in [row.who for row in found.rows]
    assert found.rows[-1].who == "median of 16,353 other ranks"
    assert found.lags is not None
    assert len(found.lags) < 60_000
    assert found.lags.count('class="q0"') + found.lags.count('class="q1"') == 1  # the block that has it
    assert "16,384 ranks in 64 blocks of up to 256" in str(found.folded)
    assert len(caps.notes) == 2


def test_what_hides_of_a_reduction_is_drawn_for_each_node() -> None:
    waits = dataclasses.replace(rank(2, 0.0), exposed_s=0.05, computing_s=0.02)
    base = world([rank(0, 0.0), waits], [rank(1, 0.0)])
    nodes = [
        dataclasses.replace(
            node,
            timing=dataclasses.replace(
                node.timing,
                ranks=tuple(
                    dataclasses.replace(each, computing_s=each.computing_s or 0.06)
                    for each in node.timing.ranks
                ),
                exposed_s=0.01,
                reduction_s=0.04,
                gradient_bytes=4_000_000,
                iterations=12,
            ),
        )
        for node in base.training
    ]
    first, second = view_overlaps(dataclasses.replace(base, training=tuple(nodes)), Caps())
    assert first.host != second.host
    assert "takes 40 ms, of which 75% overlaps with the backward pass" in first.said
    assert [(name, begin, end) for name, _, begin, end in first.rows] == [
        ("backward", "0 s", "60 ms"),
        ("reduction", "30 ms", "70 ms"),
    ]
    assert view_overlaps(base, Caps()) == ()


def with_timing(evidence: Evidence, **more: Any) -> Evidence:
    (node,) = evidence.training
    return dataclasses.replace(
        evidence, training=(dataclasses.replace(node, timing=dataclasses.replace(node.timing, **more)),)
    )


def test_waiting_for_other_stages_is_a_part_of_the_bar_of_each_rank() -> None:
    bare = [dataclasses.replace(rank(number, None), exposed_s=None, after_s=None) for number in range(2)]
    stages = (StageTimes(0, 0, 0.2, 0.1), StageTimes(1, 1, 0.2, 0.01))
    found = view(with_timing(world(bare), pipeline=Pipeline(2, 1, 4, 12, stages)))
    words = [each for _, each in found.legend]
    assert words == ["forward", "backward", "waiting for other stages", "optimizer", "other Python"]
    waits = [dict(zip(words, row.parts, strict=True))["waiting for other stages"] for row in found.rows]
    assert waits == ["50 ms", "5 ms"]  # of 100 ms
    assert [row.step for row in found.rows] == ["100 ms", "100 ms"]


def test_exposed_communication_of_shards_is_a_part_and_no_phase_falls_below_zero() -> None:
    bare = [dataclasses.replace(rank(number, None), exposed_s=None, after_s=None) for number in range(2)]
    for gather, told in ((0.02, "30 ms"), (3.0, "91 ms")):  # the optimizer's 9 ms stay
        shards = ShardTimes(12, 0.1, gather, 0.01, 1 << 20)
        found = view(with_timing(world(bare), shards=shards))
        words = [each for _, each in found.legend]
        assert dict(zip(words, found.rows[0].parts, strict=True))["exposed communication"] == told
