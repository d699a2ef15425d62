"""Stragglers, loaders that are waited for, and communication that nothing hides, on made-up evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.layout import make_layout
from ddpdoctor.evidence.members import JobNode
from ddpdoctor.evidence.training.fingerprints import OptimizerSetup, StepLook, Training
from ddpdoctor.evidence.training.timing import (
    PHASES,
    Pipeline,
    RankTimes,
    ShardTimes,
    StageTimes,
    Timing,
)
from ddpdoctor.judge import Finding, NotApplicable
from ddpdoctor_checks.training import (
    find_bubble,
    find_communication_bound,
    find_loader_bound,
    find_straggling,
)

LOADER = Frame("train.py", 12, "main", "for x, y in loader:")
STEP = Frame("train.py", 20, "main", "optimizer.step()")
COLUMNS = 40


def spend(**seconds: float) -> tuple[float, ...]:
    given = {"other": 0.001, "forward": 0.02, "backward": 0.07, "optimizer": 0.009, **seconds}
    return tuple(given.get(phase, 0.0) for phase in PHASES)


def rank(
    number: int,
    lag: float | Callable[[int], float | None] = 0.0,
    *,
    device_wait: float | None = None,
    **seconds: float,
) -> RankTimes:
    lags = tuple(lag(place) if callable(lag) else lag for place in range(COLUMNS))
    return RankTimes(number, spend(**seconds), lags, computing_s=0.03, exposed_s=device_wait, after_s=0.0002)


def node(*ranks: RankTimes, number: int = 0, **more: Any) -> Training:
    who = RankSet(each.rank for each in ranks)
    timing = Timing(
        steps=COLUMNS,
        columns=tuple(range(1, COLUMNS + 1)),
        ranks=tuple(ranks),
        device="cpu",
        loader=(LOADER,),
    )
    return Training(
        number,
        who,
        optimizers=(OptimizerSetup(1, "torch.optim.SGD", who, frames=(STEP,)),),
        steps=(StepLook(1, 1),),
        timing=replace(timing, **more),
    )


def find(
    check: Callable[[Evidence], Iterable[Finding]], *nodes: Training, members: Sequence[JobNode] = ()
) -> list[Finding]:
    return list(check(Evidence(training=nodes, members=tuple(members))))


MOE = (Frame("moe.py", 28, "exchange", "dist.all_to_all_single(received, rows, coming, going)"),)


def test_a_rank_whose_experts_get_more_tokens_is_late_because_of_them() -> None:
    late = replace(rank(1, 0.04, other=0.05), rows=1152.0, routed_at=MOE)
    (found,) = find(find_straggling, node(replace(rank(0), rows=384.0, routed_at=MOE), late))
    assert (
        "it sends and receives 3.0 times the rows of the other in the all-to-all at moe.py:28"
        in found.message
    )
    assert [(each.line, each.role) for each in found.where] == [(28, "culprit")]
    assert "load-balancing loss" in str(found.fix[0])
    none = replace(rank(0), rows=0.0, routed_at=MOE)
    (found,) = find(find_straggling, node(none, late))
    assert "nearly all rows of the all-to-all at moe.py:28" in found.message


@pytest.mark.parametrize(
    ("rows", "other"), [(384.0, 384.0), (500.0, 384.0), (None, 384.0), (1152.0, None), (10.0, 900.0)]
)
def test_rows_that_are_even_or_not_known_are_no_reason(rows: float | None, other: float | None) -> None:
    late = replace(rank(1, 0.04, other=0.05), rows=rows, routed_at=MOE)
    (found,) = find(find_straggling, node(replace(rank(0), rows=other), late))
    assert "all-to-all" not in found.message


def test_a_rank_that_waits_for_data_is_named_with_its_loader() -> None:
    late = rank(2, 0.04, data=0.041, backward=0.03)
    (found,) = find(find_straggling, node(rank(0), rank(1), late, rank(3)))
    assert (list(found.ranks), list(found.victims)) == ([2], [0, 1, 3])
    assert found.details["phase"] == "data"
    assert found.where[0].line == 12
    assert "Rank 2 is a straggler: 40 ms" in found.message
    assert "100% of the steps" in found.message


def in_mesh(*dimensions: tuple[str, list[list[int]]], late: int = 2) -> str:
    """Return what is said of the mesh in which one of four ranks is late."""
    ranks = [
        rank(each, 0.04 if each == late else 0.0, other=0.041 if each == late else 0.001) for each in range(4)
    ]
    layout = make_layout([("group", name, group) for name, groups in dimensions for group in groups])
    (found,) = find(find_straggling, replace(node(*ranks), layout=layout))
    return " ".join(each.text for each in found.evidence if each.kind == "layout")


def test_where_a_straggler_is_in_the_mesh_and_who_waits_for_it_along_each_dimension() -> None:
    rows, columns = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
    told = in_mesh(("dp", columns), ("tp", rows))
    assert "rank 2 of dp 1, for which rank 0 waits" in told
    assert "rank 2 of tp 0, for which rank 3 waits" in told
    assert in_mesh(("dp", [[0, 1, 2, 3]])) == in_mesh() == in_mesh(("dp", columns)) == ""


def test_stragglers_that_are_a_whole_row_of_the_mesh() -> None:
    ranks = [rank(each, 0.04 * (each > 1), other=0.041 if each > 1 else 0.001) for each in range(4)]
    seen = [
        ("group", "pp", [0, 2]),
        ("group", "pp", [1, 3]),
        ("group", "dp", [0, 1]),
        ("group", "dp", [2, 3]),
    ]
    (found,) = find(find_straggling, replace(node(*ranks), layout=make_layout(seen)))
    assert "in the mesh: all ranks of pp 1, for which ranks 0-1 wait" in {
        each.text for each in found.evidence
    }


@pytest.mark.parametrize(
    ("seconds", "phase"),
    [
        ({"other": 0.041}, "other"),
        ({"forward": 0.06}, "forward"),
        ({"optimizer": 0.05}, "optimizer"),
        ({"starting": 0.05}, "data"),
    ],
)
def test_the_phase_that_is_longer_is_told(seconds: dict[str, float], phase: str) -> None:
    (found,) = find(find_straggling, node(rank(0), rank(1, 0.04, **seconds)))
    assert found.details["phase"] == phase


def test_a_lag_that_no_phase_explains_is_no_stragglers() -> None:
    assert not find(find_straggling, node(rank(0), rank(1, 0.04, other=0.015)))


def test_python_behind_the_backward_is_told_apart_from_it() -> None:
    late = replace(rank(1, 0.04), after_s=0.04)
    (found,) = find(find_straggling, node(rank(0), late))
    assert found.details["phase"] == "after"


def test_a_backward_that_is_slow_before_its_first_bucket_is_seen() -> None:
    slow = replace(rank(1), slower_s=0.035)
    (found,) = find(find_straggling, node(rank(0), slow, rank(2)))
    assert list(found.ranks) == [1]
    assert found.details["phase"] == "bucket"
    assert not find(find_straggling, node(rank(0), replace(rank(1), slower_s=0.015), rank(2)))


@pytest.mark.parametrize(
    "lag",
    [
        0.015,  # of a step of 100 ms
        lambda place: 0.08 if place % 10 == 0 else 0.0,  # writes a checkpoint
        lambda place: 0.05 if place % 2 else 0.0,  # in turn with the other
        lambda place: None if place < 29 else 0.05,  # too few
    ],
)
def test_ranks_that_are_late_now_and_then_are_left_alone(lag: float | Callable[[int], float | None]) -> None:
    late = rank(1, lag, other=0.05)
    assert not find(find_straggling, node(rank(0, lambda place: 0.0), late))


def test_short_steps_that_differ_by_little_are_left_alone() -> None:
    tiny = [replace(rank(each, 0.004 * each), seconds=(0.001,) * len(PHASES)) for each in range(2)]
    assert not find(find_straggling, node(*tiny))


def test_too_few_steps_are_not_judged() -> None:
    few = [replace(rank(each), lags=(0.05 * each,) * 19) for each in range(2)]
    with pytest.raises(NotApplicable):
        find(find_straggling, node(*few, steps=19, columns=tuple(range(19))))
    with pytest.raises(NotApplicable):
        find(find_loader_bound, node(*few, steps=19))


def test_of_large_jobs_few_columns_are_enough() -> None:
    ranks = [replace(rank(each, data=0.041 * each), lags=(0.04 * each,) * 12) for each in range(2)]
    assert find(find_straggling, node(*ranks, columns=tuple(range(1, 49, 4)), width=4))


def test_on_a_gpu_others_must_be_seen_to_wait() -> None:
    early, late = rank(0, device_wait=0.05), rank(1, 0.04, device_wait=0.005, data=0.045)
    assert find(find_straggling, node(early, late, device="cuda"))
    hidden = rank(0, device_wait=0.01)
    assert not find(find_straggling, node(hidden, late, device="cuda"))
    assert not find(find_straggling, node(rank(0), rank(1, 0.04, data=0.045), device="cuda"))


def test_a_node_that_is_late_is_named_where_clocks_were_compared() -> None:
    def arrive(number: int, late_s: float) -> Training:
        came = tuple(int((1e9 + place * 0.1 + late_s) * 1e9) for place in range(COLUMNS))
        ranks = [rank(2 * number + each, other=0.041 if number == 1 else 0.001) for each in range(2)]
        return node(*ranks, number=number, arrivals_ns=came)

    nodes = [arrive(0, 0.0), arrive(1, 5.04), arrive(2, 0.0)]
    clocks = [JobNode(0, clock_offset_s=0.0), JobNode(1, clock_offset_s=5.0, clock_error_s=0.001),
              JobNode(2, clock_offset_s=0.0, clock_error_s=0.001)]  # fmt: skip
    (found,) = find(find_straggling, *nodes, members=clocks)
    assert list(found.ranks) == [2, 3]
    assert found.details["lag_s"] == pytest.approx(0.04, abs=1e-3)
    assert not find(find_straggling, *nodes)  # nobody knows the clocks
    vague = [replace(each, clock_error_s=0.02) for each in clocks]
    assert not find(find_straggling, *nodes, members=vague)
    drifted = [
        JobNode(0, clock_offset_s=0.0),
        JobNode(1, clock_offset_s=5.08),
        JobNode(2, clock_offset_s=0.0),
    ]
    assert not find(find_straggling, *nodes, members=drifted)


def test_a_node_is_late_without_clocks_where_the_others_are_seen_to_wait() -> None:
    def make(number: int, wait: float, **seconds: float) -> Training:
        ranks = [rank(2 * number + each, device_wait=wait, **seconds) for each in range(2)]
        return node(*ranks, number=number, reductions=1.0)

    late = make(1, 0.01, data=0.04, backward=0.03)
    (found,) = find(find_straggling, make(0, 0.05), late, make(2, 0.05))
    assert list(found.ranks) == [2, 3]
    assert found.details["share"] is None
    assert "% of the steps" not in found.message
    assert not find(find_straggling, make(0, 0.01), late, make(2, 0.01))  # nobody waits
    assert not find(
        find_straggling, make(0, 0.05), make(1, 0.01), make(2, 0.05)
    )  # none is on its own for longer


def test_steps_that_wait_for_data_are_told_with_the_loader() -> None:
    ranks = [rank(each, data=0.09) for each in range(4)]
    (found,) = find(find_loader_bound, node(*ranks))
    assert found.where[0].line == 12
    assert found.details["share"] == pytest.approx(0.474, abs=0.001)
    assert "Ranks 0-3 wait for data at train.py:12 in 47% of each step: 90 ms of 190 ms" in found.message
    assert not find(find_loader_bound, node(*ranks, device="cuda"))


def test_a_loader_that_few_ranks_wait_for_and_one_that_is_quick_are_left_alone() -> None:
    assert not find(find_loader_bound, node(rank(0), rank(1, data=0.2)))
    assert not find(find_loader_bound, node(*(rank(each, data=0.05) for each in range(2))))
    quick = [replace(rank(each), seconds=(0.0005, 0.004, 0.0, 0.001, 0.001, 0.0, 0.0)) for each in range(2)]
    assert not find(find_loader_bound, node(*quick))
    begins = [rank(each, starting=0.5) for each in range(2)]  # workers that start
    assert not find(find_loader_bound, node(*begins))


BOUND: dict[str, Any] = {
    "exposed_s": 0.06,
    "reduction_s": 0.061,
    "reductions": 1.0,
    "iterations": 7,
    "gradient_bytes": 40 << 20,
}


def test_communication_that_nothing_hides_is_told_with_its_bandwidth() -> None:
    (found,) = find(
        find_communication_bound, node(*(rank(each, backward=0.08) for each in range(4)), **BOUND)
    )
    assert found.details["share"] == pytest.approx(0.545, abs=0.001)
    assert found.details["bus_bandwidth"] == pytest.approx(1.03, abs=0.01)
    assert "40 MiB" in found.message
    assert "bucket_cap_mb" not in str(found.fix)
    wide = node(*(replace(rank(each, backward=0.13), computing_s=0.07) for each in range(4)),
                **{**BOUND, "exposed_s": 0.1, "reduction_s": 0.06})  # fmt: skip
    assert "bucket_cap_mb" in str(find(find_communication_bound, wide)[0].fix)


@pytest.mark.parametrize(
    "other",
    [
        {"exposed_s": 0.02},
        {"gradient_bytes": 1000},
        {"reductions": 0.25},
        {"reduction_s": 0.0, "exposed_s": 0.0},
    ],
)
def test_little_communication_is_left_alone(other: dict[str, float]) -> None:
    ranks = [rank(each, backward=0.08) for each in range(2)]
    assert not find(find_communication_bound, node(*ranks, **{**BOUND, **other}))


def test_first_iterations_that_were_slower_than_usual_ones_do_not_count() -> None:
    assert not find(
        find_communication_bound, node(*(rank(each, backward=0.02) for each in range(2)), **BOUND)
    )


def test_waiting_for_a_straggler_is_no_communication() -> None:
    early, late = rank(0, device_wait=0.05), rank(1, 0.05, device_wait=0.01, data=0.05, backward=0.04)
    evidence = node(early, late, **{**BOUND, "exposed_s": 0.01, "reduction_s": 0.011})
    assert not find(find_communication_bound, evidence)
    assert find(find_straggling, evidence)


def test_what_was_not_measured_is_not_judged() -> None:
    with pytest.raises(NotApplicable):
        find(find_communication_bound, node(rank(0), rank(1)))
    with pytest.raises(NotApplicable):
        find(find_communication_bound, node(rank(0), rank(1), **{**BOUND, "iterations": 4}))


SHARDS = ShardTimes(12, 0.1, 0.04, 0.02, 64 << 20, (("layers.3", 0.02), ("", 0.01)))


def test_a_step_that_waits_for_shards_is_told_with_the_modules() -> None:
    (found,) = find(find_communication_bound, node(rank(0), rank(1), shards=SHARDS))
    assert found.message.startswith(
        "60% of each step is exposed communication of fully_shard: 60 ms of 100 ms"
    )
    assert "layers.3 20 ms, the model itself 10 ms" in str(found.evidence)
    assert list(found.ranks) == [0, 1]
    # The node that waits least waits for no other.
    quick = node(rank(2), rank(3), number=1, shards=replace(SHARDS, gather_s=0.01))
    assert not find(find_communication_bound, node(rank(0), rank(1), shards=SHARDS), quick)


@pytest.mark.parametrize(
    "other", [{"gather_s": 0.02}, {"gathered_bytes": 1000}, {"step_s": 0.004, "gather_s": 0.003}]
)
def test_shards_that_steps_hardly_wait_for_are_left_alone(other: dict[str, Any]) -> None:
    assert not find(find_communication_bound, node(rank(0), rank(1), shards=replace(SHARDS, **other)))


def test_shards_that_were_measured_in_few_steps_are_not_judged() -> None:
    with pytest.raises(NotApplicable):
        find(find_communication_bound, node(rank(0), rank(1), shards=replace(SHARDS, steps=4)))


def stages(*waits: float, micro_batches: int = 4, steps: int = 12, held: int = 1) -> Training:
    """A pipeline whose stages wait for so many milliseconds of 100."""
    ranks = tuple(StageTimes(place, place, 0.1, each / 1000) for place, each in enumerate(waits))
    pipeline = Pipeline(len(ranks) * held, held, micro_batches, steps, ranks, (STEP,))
    return node(*(rank(place) for place in range(len(ranks))), pipeline=pipeline)


def test_too_few_micro_batches_keep_no_stage_busy() -> None:
    (found,) = find(find_bubble, stages(55, 50, 52, 54, micro_batches=2))
    assert "waits for other stages for 50% of each step or more" in found.message
    assert "2 micro-batches keep 4 ranks busy for 40% of it at most" in found.message
    assert "n_microbatches=16" in str(found.fix)
    assert found.where[0].line == STEP.line


def test_waiting_that_micro_batches_do_not_explain_is_left_alone() -> None:
    assert not find(find_bubble, stages(55, 50, 52, 54, micro_batches=16))
    assert not find(find_bubble, stages(55, 50, 52, 54, micro_batches=0))
    assert not find(find_bubble, stages(55, 50, 52, 54, micro_batches=2, held=4))  # interleaved
    assert not find(find_bubble, stages(30, 30, 30, 30, micro_batches=2))


def test_the_stage_that_is_busy_longest_is_named() -> None:
    (found,) = find(find_bubble, stages(70, 75, 10, 72, micro_batches=16))
    assert found.message.startswith("Stage 2 (rank 2) computes 3.2 times as long as the other stages")
    assert list(found.ranks) == [2]
    assert list(found.victims) == [0, 1, 3]
    (two,) = find(find_bubble, stages(75, 10, micro_batches=16))
    assert "as long as the other stage of the pipeline" in two.message
    assert two.message.endswith("It waits for 75% of each step.")
    assert not find(find_bubble, stages(30, 32, 5, 31, micro_batches=16))  # 1.4 times as long
    assert not find(find_bubble, stages(45, 50, 10, 45, micro_batches=4))  # the schedule explains that much
    assert not find(find_bubble, stages(88, 72, micro_batches=16))  # no stage is busy
    (few,) = find(find_bubble, stages(88, 72, micro_batches=1))
    assert "1 micro-batch keeps 2 ranks busy for 50% of it at most" in few.message


def test_pipelines_that_were_measured_in_few_steps_are_not_judged() -> None:
    for seen in (stages(70, 70, micro_batches=1, steps=4), node(rank(0), rank(1))):
        with pytest.raises(NotApplicable):
            find(find_bubble, seen)
