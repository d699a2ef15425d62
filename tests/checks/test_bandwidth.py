"""Bandwidth against what the hardware gives, and slow nodes, ranks and links."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import BandwidthRow, Baseline, Cpus, Device, Evidence, Interface, PairRow, RankSet
from ddpdoctor.judge import CannotLook, run_checks
from ddpdoctor.testing import (
    assert_finds,
    assert_passes,
    assert_status,
    collect_checks,
    judge_one,
    make_node,
    make_rank,
    make_world,
)
from ddpdoctor_checks import bandwidth
from ddpdoctor_checks.bandwidth.expectation import expect_bandwidth
from ddpdoctor_checks.bandwidth.links import SLOW_TCP, find_slowness

SIZES = (1 << 10, 1 << 20, 16 << 20, 64 << 20)


def make_row(size: int, busbw: float, op: str = "all_reduce", ranks: int = 4, **changes: Any) -> BandwidthRow:
    algbw = busbw / (2 * (ranks - 1) / ranks)
    seconds = size / algbw / 1e9
    row = BandwidthRow(
        op=op,
        backend="gloo",
        dtype="float32",
        bytes=size,
        ranks=ranks,
        iterations=5,
        seconds=seconds,
        seconds_min=seconds * 0.8,
        seconds_max=seconds * 1.5,
        algbw=algbw,
        busbw=busbw,
        busbw_min=busbw * 0.7,
        busbw_max=busbw * 1.2,
        correct=True,
    )
    return replace(row, **changes)


def make_sweep(plateau: float, op: str = "all_reduce", **changes: Any) -> tuple[BandwidthRow, ...]:
    shape = (0.001, 0.5, 0.97, 1.0)
    return tuple(
        make_row(size, plateau * part, op, **changes) for size, part in zip(SIZES, shape, strict=True)
    )


def make_cpu_world(
    sweep: Iterable[BandwidthRow], *, nproc: int = 4, nodes: int = 1, cores: int = 8, loopback: float = 4.0
) -> Evidence:
    hosts = [make_node(node, cpus=Cpus(cores, cores)) for node in range(nodes)]
    world = make_world(hosts, nproc, bandwidth=tuple(sweep))
    return replace(world, baselines=tuple(Baseline(node, "loopback-copy", loopback) for node in range(nodes)))


# -- PRF001: ranks on CPUs -----------------------------------------------------------------------------


def test_a_bandwidth_far_below_the_loopback_copy_is_found_with_its_reason() -> None:
    world = make_cpu_world(make_sweep(0.05))
    found = assert_finds(bandwidth.find_bandwidth_low, world, code="PRF001", severity="warning")
    assert found.message == (
        "all_reduce with gloo reaches 0.05 GB/s (bus) at 64 MiB over 4 ranks; 1.2 to 6 GB/s are expected: "
        "a loopback copy gives 4 GB/s on node-0, shared by 4 ranks on 8 cores."
    )
    assert (str(found.ranks), found.details["op"], found.confidence) == ("0-3", "all_reduce", "medium")
    assert "uptime" in (found.fix[0].command or "")
    assert len(found.evidence) == 4


def measured(op: str, ranks: int, *best_at_plateau: float) -> Evidence:
    """What gloo gave on a 2-core virtual machine, torch 2.13.0; loopback copies gave 3.4 to 6.2 GB/s."""
    sizes = (1 << 20, 16 << 20, 64 << 20)
    sweep = [make_row(size, value, op, ranks) for size, value in zip(sizes, best_at_plateau, strict=True)]
    return make_cpu_world(sweep, nproc=ranks, cores=2, loopback=6.2)


@pytest.mark.parametrize(
    ("op", "ranks", "values"),
    [
        ("all_reduce", 2, (1.11, 0.60, 1.13)),
        ("all_gather", 2, (0.34, 0.49, 0.15)),
        ("reduce_scatter", 2, (0.11, 0.54, 0.47)),
        ("broadcast", 2, (1.39, 2.32, 2.46)),
        ("all_to_all", 2, (0.34, 0.49, 0.50)),
        ("all_reduce", 4, (0.27, 0.70, 0.81)),
        ("all_gather", 4, (0.14, 0.31, 0.39)),
        ("reduce_scatter", 4, (0.04, 0.25, 0.22)),
        ("broadcast", 4, (0.22, 1.10, 0.90)),
        ("all_to_all", 4, (0.21, 0.36, 0.32)),
    ],
)
def test_what_a_noisy_machine_with_two_cores_really_gave_is_no_finding(
    op: str, ranks: int, values: tuple[float, ...]
) -> None:
    world = measured(op, ranks, *values)
    assert_passes(
        bandwidth.find_bandwidth_low,
        world,
        id="bw.all_reduce.expected" if op == "all_reduce" else "bw.others.expected",
    )


def test_one_good_iteration_is_enough() -> None:
    sweep = [replace(row, busbw_max=2.0) if row.bytes == 64 << 20 else row for row in make_sweep(0.05)]
    assert_passes(bandwidth.find_bandwidth_low, make_cpu_world(sweep), id="bw.all_reduce.expected")


def test_crowded_cores_lower_what_is_expected_and_say_so() -> None:
    roomy = expect_bandwidth(make_cpu_world((), cores=4), "all_reduce", 4)
    crowded = expect_bandwidth(make_cpu_world((), cores=3), "all_reduce", 4)
    assert crowded.low < roomy.low / 3
    assert crowded.reason.endswith("4 ranks on 3 cores, more ranks than cores")


def test_a_cgroup_quota_counts_as_cores() -> None:
    world = make_cpu_world((), cores=64)
    node = replace(world.nodes[0], cpus=Cpus(64, 64, quota=1.5))
    assert "on 1.5 cores" in expect_bandwidth(replace(world, nodes=(node,)), "all_reduce", 4).reason


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"baselines": ()}, "no loopback copy"),
        ({"bandwidth": make_sweep(0.01)[:1]}, "ended at 1 KiB"),
        ({"bandwidth": tuple(make_row(size, size / 1e10) for size in SIZES)}, "still rising at 64 MiB"),
    ],
)
def test_bandwidth_abstains_and_says_why(changes: dict[str, Any], words: str) -> None:
    world = replace(make_cpu_world(make_sweep(0.05)), **changes)
    why = assert_status(bandwidth.find_bandwidth_low, world, "unknown", id="bw.all_reduce.expected")
    assert words in why


def test_nothing_is_expected_of_many_ranks_on_a_core_or_of_an_unknown_backend() -> None:
    with pytest.raises(CannotLook, match="32 ranks share each core"):
        expect_bandwidth(make_cpu_world((), nproc=64, cores=2), "all_reduce", 64)
    world = make_cpu_world(())
    with pytest.raises(CannotLook, match="ucc"):
        expect_bandwidth(replace(world, launch=replace(world.launch, backend="ucc")), "all_reduce", 4)


def test_blindness_of_one_operation_does_not_hide_another() -> None:
    short = make_sweep(0.01, "broadcast")[:1]
    world = make_cpu_world((*make_sweep(2.0), *short, *make_sweep(0.001, "reduce")))
    found = assert_finds(bandwidth.find_bandwidth_low, world)
    assert found.details["op"] == "reduce"


def test_a_single_rank_sends_nothing() -> None:
    sweep = tuple(replace(make_row(size, 1.0), ranks=1) for size in SIZES)
    assert_status(
        bandwidth.find_bandwidth_low, make_cpu_world(sweep, nproc=1), "skipped", id="bw.all_reduce.expected"
    )


def test_a_sweep_that_did_not_come_says_why() -> None:
    world = make_cpu_world(())
    stages = tuple(
        replace(each, status="cut", reason="30 s") if each.stage == "bandwidth" else each
        for each in world.stages
    )
    assert_status(bandwidth.find_bandwidth_low, replace(world, stages=stages), "unknown")


# -- PRF001: several nodes -----------------------------------------------------------------------------


def with_speed(world: Evidence, mbps: int | None, nodes: Iterable[int] | None = None) -> Evidence:
    chosen = set(range(len(world.nodes)) if nodes is None else nodes)
    hosts = tuple(
        replace(
            node,
            interfaces=(Interface("eth0", ("10.0.0.1",), speed_mbps=mbps if node.node in chosen else 25000),),
        )
        for node in world.nodes
    )
    return replace(world, nodes=hosts)


def test_the_slowest_interface_sets_the_expectation() -> None:
    world = with_speed(make_cpu_world(make_sweep(0.01), nodes=2, nproc=2), 1000, [1])
    found = assert_finds(bandwidth.find_bandwidth_low, world)
    assert found.message.endswith("eth0 of node-1 reports 1 Gbit/s.")
    assert "0.037 to 0.12 GB/s are expected" in found.message
    assert "tc qdisc show" in (found.fix[0].command or "")


def test_a_shaped_virtual_link_is_found_although_its_speed_means_little() -> None:
    """tc tbf at 200 Mbit on veth pairs, which report 10 Gbit/s: 24 MB/s where 800 were."""
    world = with_speed(make_cpu_world(make_sweep(0.024), nodes=2, nproc=1, cores=2), 10_000)
    found = assert_finds(bandwidth.find_bandwidth_low, world)
    assert "as every virtual interface does" in found.message
    assert_passes(
        bandwidth.find_bandwidth_low,
        with_speed(make_cpu_world(make_sweep(0.4), nodes=2, nproc=1, cores=2), 10_000),
        id="bw.all_reduce.expected",
    )


def test_an_interface_without_a_speed_abstains() -> None:
    world = with_speed(make_cpu_world(make_sweep(0.001), nodes=2, nproc=2), None)
    why = assert_status(bandwidth.find_bandwidth_low, world, "unknown", id="bw.all_reduce.expected")
    assert "the speed of the interface of node-0" in why


# -- PRF001: GPUs --------------------------------------------------------------------------------------


def make_gpu_world(
    sweep: Iterable[BandwidthRow], label: str, capability: str = "9.0", nproc: int = 8
) -> Evidence:
    devices = tuple(
        Device(
            index,
            uuid=f"GPU-{index}",
            capability=capability,
            links={str(other): label for other in range(nproc) if other != index},
        )
        for index in range(nproc)
    )
    ranks = tuple(
        make_rank(rank, nproc, nproc, device=f"cuda:{rank}", device_uuid=f"GPU-{rank}", visible_devices=nproc)
        for rank in range(nproc)
    )
    world = make_world([make_node(0, devices=devices)], nproc, ranks=ranks, bandwidth=tuple(sweep))
    return replace(world, launch=replace(world.launch, backend="nccl"))


@pytest.mark.parametrize(
    ("label", "capability", "healthy", "broken", "words"),
    [
        ("NV18", "9.0", 230.0, 30.0, "18 NVLinks of 20.6 GB/s join each GPU of node-0"),
        ("NV12", "8.0", 140.0, 12.0, "12 NVLinks of 20 GB/s"),
        ("PIX", "8.0", 18.0, 1.0, "the GPUs of node-0 are joined by PCIe"),
        ("SYS", "8.9", 7.0, 0.5, "PCIe across sockets"),
    ],
)
def test_gpus_are_judged_by_their_links(
    label: str, capability: str, healthy: float, broken: float, words: str
) -> None:
    good = make_gpu_world(make_sweep(healthy, backend="nccl", ranks=8), label, capability)
    assert_passes(bandwidth.find_bandwidth_low, good, id="bw.all_reduce.expected")
    bad = make_gpu_world(make_sweep(broken, backend="nccl", ranks=8), label, capability)
    found = assert_finds(bandwidth.find_bandwidth_low, bad)
    assert words in found.message
    assert any("NCCL_DEBUG=INFO" in (fix.command or "") for fix in found.fix)


def test_a_workaround_that_was_left_on_is_the_first_fix() -> None:
    world = make_gpu_world(make_sweep(5.0, backend="nccl", ranks=8), "NV18")
    ranks = tuple(replace(each, variables={"NCCL_P2P_DISABLE": "1"}) for each in world.ranks)
    found = assert_finds(bandwidth.find_bandwidth_low, replace(world, ranks=ranks))
    assert found.fix[0].command == "unset NCCL_P2P_DISABLE"


def test_bridged_pairs_are_not_taken_for_a_full_mesh() -> None:
    """Four cards, joined in twos by a bridge: the ring must cross PCIe."""
    world = make_gpu_world(make_sweep(9.0, backend="nccl"), "SYS", "8.6", nproc=4)
    devices = tuple(
        replace(each, links={**each.links, str(each.index ^ 1): "NV4"}) for each in world.nodes[0].devices
    )
    world = replace(world, nodes=(replace(world.nodes[0], devices=devices),))
    assert "PCIe across sockets" in expect_bandwidth(world, "all_reduce", 4).reason
    assert_passes(bandwidth.find_bandwidth_low, world, id="bw.all_reduce.expected")


def test_gpus_whose_links_are_not_known_abstain() -> None:
    world = make_gpu_world(make_sweep(0.1, backend="nccl", ranks=8), "NV18")
    devices = tuple(replace(each, links={}) for each in world.nodes[0].devices)
    world = replace(world, nodes=(replace(world.nodes[0], devices=devices),))
    assert_status(bandwidth.find_bandwidth_low, world, "unknown", id="bw.all_reduce.expected")


def test_a_sweep_too_short_for_gpus_abstains() -> None:
    world = make_gpu_world(make_sweep(5.0, backend="nccl", ranks=8)[:2], "NV18")
    why = assert_status(bandwidth.find_bandwidth_low, world, "unknown", id="bw.all_reduce.expected")
    assert "ended at 1 MiB" in why


# -- contents ------------------------------------------------------------------------------------------


def test_wrong_contents_of_the_sweep_are_wrong_results() -> None:
    sweep = [replace(row, correct=row.bytes != 16 << 20) for row in make_sweep(2.0)]
    found = assert_finds(
        bandwidth.find_contents_wrong, make_cpu_world(sweep), code="COL001", severity="error"
    )
    assert "all_reduce of 16 MiB (float32) with gloo left wrong values" in found.message
    assert str(found.ranks) == "0-3"
    assert_passes(bandwidth.find_contents_wrong, make_cpu_world(make_sweep(2.0)))


# -- PRF002 --------------------------------------------------------------------------------------------


def make_pairs(
    members: int,
    level: str = "node",
    *,
    slow: Iterable[int] = (),
    links: Iterable[tuple[int, int]] = (),
    rounds: int = 1,
    factor: float = 0.1,
    noise: float = 0.3,
    way: str = "both",
    seed: int = 7,
) -> tuple[PairRow, ...]:
    """All pairs in both directions, in each round, with noise of up to ``noise``."""
    generator = random.Random(seed)
    bad, broken = set(slow), {frozenset(pair) for pair in links}
    rows = []
    for turn in range(rounds):
        for a in range(members):
            for b in range(members):
                if a != b:
                    speed = 1.0 * (1 - generator.random() * noise)
                    hit = (a in bad and way != "receives") or (b in bad and way != "sends")
                    if hit or frozenset((a, b)) in broken:
                        speed *= factor
                    rows.append(PairRow(a, b, level, 4 << 20, (4 << 20) / speed / 1e9, speed, turn))
    return tuple(rows)


def make_repaired(members: int, slow: int, rounds: int = 2) -> tuple[PairRow, ...]:
    """Each member has one partner a round, and another one in the next."""
    rows = []
    for turn in range(rounds):
        order = [(index * (2 * turn + 1)) % members for index in range(members)]
        for a, b in zip(order[::2], order[1::2], strict=True):
            speed = 0.05 if slow in (a, b) else 1.0
            rows += [PairRow(c, d, "node", 4 << 20, 1.0, speed, turn) for c, d in ((a, b), (b, a))]
    return tuple(rows)


def node_world(pairs: tuple[PairRow, ...], nodes: int = 4, **settings: Any) -> Evidence:
    return replace(make_cpu_world(make_sweep(2.0), nodes=nodes, nproc=2, **settings), pairs=pairs)


@pytest.mark.parametrize("nodes", [3, 4, 9])
def test_a_slow_node_is_named_and_not_its_partners(nodes: int) -> None:
    world = node_world(make_pairs(nodes, slow=[1]), nodes)
    found = assert_finds(
        bandwidth.find_link_slow, world, code="PRF002", id="bw.links.nodes", severity="warning"
    )
    assert found.message.startswith("node-1 is slow with every partner: 0.09")
    assert (found.nodes, str(found.ranks)) == (("node-1",), "2-3")
    assert all("node-1" in pair for pair in found.pairs)
    assert 0.05 < found.details["ratio"] < 0.2
    assert "tc qdisc show" in (found.fix[0].command or "")


def test_a_slow_link_is_named_by_its_ends() -> None:
    world = node_world(make_pairs(4, links=[(0, 2)]))
    found = assert_finds(bandwidth.find_link_slow, world, id="bw.links.nodes")
    assert found.message.startswith("The link node-0 - node-2 is slow")
    assert "the same nodes are not slow with others" in found.message
    assert found.pairs == (("node-0", "node-2"),)


def test_noise_alone_is_no_finding() -> None:
    for nodes in (3, 4, 6, 8):
        for seed in range(100):
            rows = make_pairs(nodes, noise=0.6, seed=seed)
            found = find_slowness(rows, SLOW_TCP, complete=True)
            assert found is not None
            assert (found.members, found.links) == ({}, {})


@pytest.mark.parametrize(("way", "words"), [("sends", "when sending"), ("receives", "when receiving")])
@pytest.mark.parametrize("nodes", [3, 6])
def test_a_node_that_is_shaped_in_one_direction_is_named_with_it(way: str, words: str, nodes: int) -> None:
    """Tc tbf on an interface shapes what leaves it and nothing else."""
    world = node_world(make_pairs(nodes, slow=[2], way=way), nodes)
    found = assert_finds(bandwidth.find_link_slow, world, id="bw.links.nodes")
    assert found.message.startswith(f"node-2 is {words} slow with every partner")
    assert found.nodes == ("node-2",)


def test_slow_pairs_that_sent_smaller_messages_are_compared_with_the_others() -> None:
    rows = make_pairs(3, slow=[0], factor=0.02)
    rows = tuple(replace(row, bytes=256 << 10) if row.bandwidth < 0.02 else row for row in rows)
    assert {row.bytes for row in rows} == {4 << 20, 256 << 10}
    found = assert_finds(bandwidth.find_link_slow, node_world(rows, 3), id="bw.links.nodes")
    assert found.nodes == ("node-0",)


def test_one_direction_of_one_pair_that_was_slow_once_is_not_believed() -> None:
    rows = list(make_pairs(4))
    rows[0] = replace(rows[0], bandwidth=0.01)
    assert_passes(bandwidth.find_link_slow, node_world(tuple(rows)), id="bw.links.nodes")


def test_two_rounds_of_new_partners_find_the_slow_node_of_many() -> None:
    found = find_slowness(make_repaired(64, slow=10), 0.5, complete=False)
    assert found is not None
    assert (list(found.members), found.links) == ([10], {})


def test_one_round_of_partners_accuses_nobody() -> None:
    found = find_slowness(make_repaired(64, slow=10, rounds=1), 0.5, complete=False)
    assert found is not None
    assert (found.members, found.links) == ({}, {})


def test_everything_equally_slow_is_not_a_slow_link() -> None:
    found = find_slowness(make_pairs(4, slow=range(4)), 0.5, complete=True)
    assert found is not None
    assert (found.members, found.links) == ({}, {})


def test_one_pair_has_nothing_to_be_compared_with() -> None:
    world = node_world(make_pairs(2), 2)
    assert "nothing to compare" in assert_status(
        bandwidth.find_link_slow, world, "skipped", id="bw.links.nodes"
    )
    assert (
        assert_status(bandwidth.find_link_slow, make_world(1, 4), "skipped", id="bw.links.nodes")
        == "single node"
    )


def rank_world(pairs: tuple[PairRow, ...], nproc: int, cores: int) -> Evidence:
    return replace(make_cpu_world(make_sweep(2.0), nproc=nproc, cores=cores), pairs=pairs)


def test_ranks_that_outnumber_their_cores_measure_the_scheduler() -> None:
    world = rank_world(make_pairs(4, "rank", slow=[1]), 4, 2)
    why = assert_status(bandwidth.find_link_slow, world, "unknown", id="bw.links.ranks")
    assert why == "4 ranks share 2 cores of node-0: their pairs measure the scheduler"


def test_a_slow_rank_with_cores_to_spare_is_named() -> None:
    world = rank_world(make_pairs(4, "rank", slow=[1]), 4, 8)
    found = assert_finds(bandwidth.find_link_slow, world, id="bw.links.ranks")
    assert found.message.startswith("Rank 1 is slow with every partner")
    assert str(found.ranks) == "1"
    assert_passes(
        bandwidth.find_link_slow,
        rank_world(make_pairs(4, "rank", slow=[1], factor=0.45), 4, 8),
        id="bw.links.ranks",
    )


def test_ranks_over_pcie_are_not_compared_with_ranks_over_nvlink() -> None:
    pairs = tuple(
        replace(row, bandwidth=row.bandwidth * (20 if row.source ^ row.target == 1 else 1))
        for row in make_pairs(8, "rank")
    )
    world = make_gpu_world((), "SYS", "8.6")
    devices = tuple(
        replace(each, links={**each.links, str(each.index ^ 1): "NV4"}) for each in world.nodes[0].devices
    )
    world = replace(world, nodes=(replace(world.nodes[0], devices=devices),), pairs=pairs)
    assert_passes(bandwidth.find_link_slow, world, id="bw.links.ranks")


def test_paths_between_nodes_are_told_once() -> None:
    nodes = make_pairs(4, slow=[1])
    ranks = tuple(replace(row, source=row.source * 2, target=row.target * 2, level="rank") for row in nodes)
    rows, findings = judge_one(bandwidth.find_link_slow, node_world((*nodes, *ranks)))
    assert len(findings) == 1
    assert [row.status for row in rows] == ["fail", "skipped"]


def test_pairs_that_were_not_measured_are_unknown() -> None:
    assert_status(bandwidth.find_link_slow, node_world(()), "unknown", id="bw.links.nodes")


def test_16384_ranks_are_judged_in_seconds() -> None:
    nodes, nproc = 2048, 8
    world = make_world(nodes, nproc, bandwidth=make_sweep(2.0, ranks=nodes * nproc))
    rows = list(make_repaired(nodes, slow=77))
    rows += [
        PairRow(
            rank,
            rank ^ (1 << turn),
            "rank",
            4 << 20,
            1.0,
            0.05 if rank in (8, 8 ^ (1 << turn)) else 1.0,
            turn,
        )
        for turn in range(3)
        for rank in range(nodes * nproc)
    ]
    world = replace(world, pairs=tuple(rows))
    checks = [
        each
        for function in (
            bandwidth.find_bandwidth_low,
            bandwidth.find_link_slow,
            bandwidth.find_contents_wrong,
        )
        for each in collect_checks(function)
    ]
    started = time.perf_counter()
    judged, findings = run_checks(checks, world)
    assert time.perf_counter() - started < 10  # the bar for the whole judgement
    assert [each.code for each in findings] == ["PRF002", "PRF002"]
    assert findings[0].nodes == ("node-77",)
    assert findings[1].ranks == RankSet([8])
    assert "error" not in {row.status for row in judged}


def test_a_healthy_world_has_no_findings() -> None:
    for world in (make_world(1, 4), make_world(3, 2)):
        for function in (
            bandwidth.find_bandwidth_low,
            bandwidth.find_link_slow,
            bandwidth.find_contents_wrong,
        ):
            rows, findings = judge_one(function, world)
            assert findings == []
            assert "error" not in {row.status for row in rows}
