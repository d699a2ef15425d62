from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ddpdoctor.evidence import PairRow
from ddpdoctor.launch.context import RankContext
from ddpdoctor.launch.probes.bandwidth import baselines
from ddpdoctor.launch.probes.bandwidth import sweep as bandwidth
from ddpdoctor.launch.probes.bandwidth.pairs import plan_rounds, probe_pairs
from ddpdoctor.launch.probes.bandwidth.sweep import (
    DEFAULT_OPERATIONS,
    FEWEST,
    count_iterations,
    describe_row,
    predict_cost,
    probe_bandwidth,
)
from ddpdoctor.launch.probes.bandwidth.transfers import OPERATIONS, Transfer
from ddpdoctor.launch.request import SWEEP_OPERATIONS
from tests.launch.worlds import run_world

EVERY = tuple(OPERATIONS)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_the_default_sweep_gives_correct_rows_of_rank_0(world_size: int, tmp_path: Path) -> None:
    world = run_world(probe_bandwidth, world_size, tmp_path)
    assert world.errors == {}
    rows = world.evidence.bandwidth
    assert {row.op for row in rows} == set(DEFAULT_OPERATIONS)
    assert all(row.correct and row.ranks == world_size and row.iterations >= FEWEST for row in rows)
    for row in rows:
        assert 0 < row.seconds_min <= row.seconds <= row.seconds_max
        assert row.algbw == pytest.approx(row.bytes / row.seconds / 1e9)
        assert row.busbw_min <= row.busbw <= row.busbw_max
    assert all(kind == "baselines" for report in world.reports[1:] for kind, _ in report.rows)
    assert [base.name for base in world.evidence.baselines] == ["memory-copy", "loopback-copy"]
    assert all(base.bandwidth > 0 for base in world.evidence.baselines)


@pytest.mark.parametrize("world_size", [2, 3])
def test_every_operation_is_swept_at_the_sizes_and_iterations_asked_for(
    world_size: int, tmp_path: Path
) -> None:
    sizes = (4096, 1_000_000)
    world = run_world(probe_bandwidth, world_size, tmp_path, collectives=EVERY, sizes=sizes, iterations=4)
    assert world.errors == {}
    rows = world.evidence.bandwidth
    assert [row.op for row in rows] == [name for name in EVERY for _ in sizes]
    assert all(row.correct and row.iterations == 4 for row in rows)
    for row in rows:
        asked = min(sizes, key=lambda size: abs(size - row.bytes))
        assert asked - 4 * world_size < row.bytes <= asked


def test_a_world_of_one_rank_has_baselines_only(tmp_path: Path) -> None:
    evidence = run_world(probe_bandwidth, 1, tmp_path).evidence
    assert evidence.bandwidth == ()
    assert len(evidence.baselines) == 2


def test_each_node_has_baselines_of_its_own(tmp_path: Path) -> None:
    evidence = run_world(probe_bandwidth, 2, tmp_path, nodes=2, sizes=(1024,)).evidence
    assert [(base.node, base.name) for base in evidence.baselines] == [
        (0, "memory-copy"),
        (0, "loopback-copy"),
        (1, "memory-copy"),
        (1, "loopback-copy"),
    ]


def spoil_large_sums(ctx: RankContext) -> None:
    original = dist.all_reduce

    def spoilt(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        done = original(tensor, *args, **options)
        if ctx.rank == 1 and tensor.numel() > 10_000:
            tensor[9_999] += 1
        return done

    dist.all_reduce = spoilt


def test_wrong_contents_on_one_rank_are_reported(tmp_path: Path) -> None:
    world = run_world(
        probe_bandwidth,
        2,
        tmp_path,
        patch=spoil_large_sums,
        collectives=("all_reduce",),
        sizes=(4096, 400_000),
    )
    assert [row.correct for row in world.evidence.bandwidth] == [True, False]


def run_wild_clock(ctx: RankContext) -> None:
    """Rank 1's clock runs a hundred times too fast: decided alone, it would repeat less than the others."""
    original = time.perf_counter
    if ctx.rank == 1:
        time.perf_counter = lambda: original() * 100


def test_ranks_agree_on_iterations_whatever_their_clocks_say(tmp_path: Path) -> None:
    world = run_world(probe_bandwidth, 2, tmp_path, patch=run_wild_clock)
    assert world.errors == {}
    assert all(row.correct for row in world.evidence.bandwidth)


def slow_down_rank_1(ctx: RankContext) -> None:
    original = dist.broadcast

    def slow(*args: Any, **options: Any) -> Any:
        if ctx.rank == 1:
            time.sleep(0.02)
        return original(*args, **options)

    dist.broadcast = slow


def test_an_iteration_takes_as_long_as_its_slowest_rank(tmp_path: Path) -> None:
    world = run_world(
        probe_bandwidth, 2, tmp_path, patch=slow_down_rank_1, collectives=("broadcast",), sizes=(1024,)
    )
    assert world.evidence.bandwidth[0].seconds_min >= 0.02


def refuse_all_to_all(ctx: RankContext) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise RuntimeError("Backend gloo does not support alltoall_base")

    dist.all_to_all_single = refuse


def test_an_operation_that_the_backend_lacks_is_left_out(tmp_path: Path) -> None:
    world = run_world(
        probe_bandwidth,
        2,
        tmp_path,
        patch=refuse_all_to_all,
        collectives=("all_to_all", "broadcast"),
        sizes=(1024,),
    )
    assert world.errors == {}
    assert {row.op for row in world.evidence.bandwidth} == {"broadcast"}
    assert any("does not support" in note for note in world.reports[0].notes)


@pytest.mark.parametrize(
    ("name", "ranks", "factor"),
    [
        ("all_reduce", 4, 1.5),
        ("all_reduce", 2, 1.0),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 4, 0.75),
        ("gather", 4, 0.75),
        ("scatter", 8, 0.875),
        ("broadcast", 4, 1.0),
        ("reduce", 4, 1.0),
        ("send_recv", 4, 1.0),
    ],
)
def test_rows_follow_the_definitions_of_nccl_tests(name: str, ranks: int, factor: float) -> None:
    transfer = Transfer(OPERATIONS[name], 8_000, 0, ranks, "cpu")
    assert transfer.bytes == 8_000
    row = describe_row("gloo", transfer, [2e-6, 4e-6, 8e-6], True)
    assert (row.op, row.bytes, row.ranks, row.iterations, row.correct) == (name, 8_000, ranks, 3, True)
    assert (row.seconds, row.seconds_min, row.seconds_max) == (4e-6, 2e-6, 8e-6)
    assert row.algbw == pytest.approx(2.0)
    assert row.busbw == pytest.approx(2.0 * factor)
    assert row.busbw_min == pytest.approx(factor)
    assert row.busbw_max == pytest.approx(4.0 * factor)


def test_the_command_line_offers_the_operations_that_there_are() -> None:
    assert set(SWEEP_OPERATIONS) == set(OPERATIONS)


def test_slow_calls_are_repeated_seldom_and_fast_ones_not_without_end() -> None:
    assert count_iterations(10.0, 0.1) == FEWEST
    assert count_iterations(0.01, 0.1) == 7
    assert count_iterations(1e-9, 0.1) == bandwidth.MOST
    assert count_iterations(1e-9, 0.1, full=True) == bandwidth.MOST_FULL


def test_costs_grow_with_bytes_only_where_latency_no_longer_rules() -> None:
    assert predict_cost(0.001, 1024, 65536) == predict_cost(0.001, 1024, 2048)
    assert predict_cost(0.001, 1 << 20, 1 << 24) == pytest.approx(16 * predict_cost(0.001, 1 << 20, 1 << 20))


def test_speeds_of_the_machine_are_measured_in_gigabytes_per_second() -> None:
    assert 0.01 < baselines.measure_memory_copy(1 << 20) < 10_000
    assert 0.001 < baselines.measure_loopback(1 << 20) < 10_000


@pytest.mark.parametrize("members", range(2, 9))
def test_up_to_eight_members_meet_each_other_once(members: int) -> None:
    rounds = plan_rounds(members)
    met = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert sorted(map(sorted, met)) == [[a, b] for a in range(members) for b in range(a + 1, members)]
    for pairs in rounds:
        assert len({member for pair in pairs for member in pair}) == 2 * len(pairs)


@pytest.mark.parametrize("members", [9, 64, 1001])
def test_many_members_meet_twice_with_different_partners(members: int) -> None:
    first, second = plan_rounds(members)
    assert plan_rounds(members) == [first, second]
    for pairs in (first, second):
        assert len({member for pair in pairs for member in pair}) == members // 2 * 2
    repeated = {frozenset(pair) for pair in first} & {frozenset(pair) for pair in second}
    assert len(repeated) < len(first) / 2


def links(rows: tuple[PairRow, ...], level: str) -> set[tuple[int, int]]:
    return {(row.source, row.target) for row in rows if row.level == level}


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_every_pair_of_ranks_is_measured_both_ways(world_size: int, tmp_path: Path) -> None:
    world = run_world(probe_pairs, world_size, tmp_path)
    assert world.errors == {}
    rows = world.evidence.pairs
    expected = {(a, b) for a in range(world_size) for b in range(world_size) if a != b}
    assert links(rows, "rank") == expected
    assert len(rows) == len(expected)
    assert all(row.bandwidth == pytest.approx(row.bytes / row.seconds / 1e9) for row in rows)


def test_nodes_meet_through_their_first_ranks(tmp_path: Path) -> None:
    rows = run_world(probe_pairs, 4, tmp_path, nodes=2).evidence.pairs
    assert links(rows, "node") == {(0, 1), (1, 0)}
    assert len(links(rows, "rank")) == 12


def test_nodes_of_one_rank_are_measured_as_nodes_only(tmp_path: Path) -> None:
    rows = run_world(probe_pairs, 3, tmp_path, nodes=3).evidence.pairs
    assert links(rows, "rank") == set()
    assert len(links(rows, "node")) == 6


def test_more_than_eight_ranks_meet_in_two_rounds(tmp_path: Path) -> None:
    world = run_world(probe_pairs, 9, tmp_path)
    assert world.errors == {}
    assert {row.round for row in world.evidence.pairs} == {0, 1}
    assert len(world.evidence.pairs) == 2 * 2 * 4


def slow_down_sending_of_rank_2(ctx: RankContext) -> None:
    original = dist.send

    def slow(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        if ctx.rank == 2 and tensor.numel() > 1:
            time.sleep(0.1)
        return original(tensor, *args, **options)

    dist.send = slow


def test_a_slow_sender_shows_in_its_rows_and_is_sent_less(tmp_path: Path) -> None:
    rows = run_world(probe_pairs, 3, tmp_path, patch=slow_down_sending_of_rank_2).evidence.pairs
    slow = [row for row in rows if row.source == 2]
    others = [row for row in rows if row.source != 2]
    assert max(row.bandwidth for row in slow) < min(row.bandwidth for row in others)
    assert all(row.bytes == 256 * 1024 for row in slow)
