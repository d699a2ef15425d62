"""Bandwidth against what the hardware gives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import Cpus, Evidence, Interface
from ddpdoctor.judge import CannotLook
from ddpdoctor.testing import (
    assert_finds,
    assert_passes,
    assert_status,
)
from ddpdoctor_checks import bandwidth
from ddpdoctor_checks.bandwidth.expectation import expect_bandwidth
from tests.checks.sweeps import SIZES, make_cpu_world, make_gpu_world, make_row, make_sweep

# -- PRF001: ranks on CPUs -----------------------------------------------------------------------------


def test_a_bandwidth_far_below_the_loopback_copy_is_found_with_its_reason() -> None:
    world = make_cpu_world(make_sweep(0.05))
    found = assert_finds(bandwidth.find_bandwidth_low, world, code="PRF001", severity="warning")
    assert found.message == (
        "all_reduce with gloo reaches 0.05 GB/s (bus) at 64 MiB across 4 ranks; 1.2 to 6 GB/s are expected: "
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


@pytest.mark.parametrize(
    ("label", "capability", "healthy", "broken", "words"),
    [
        ("NV18", "9.0", 230.0, 30.0, "18 NVLinks of 20.6 GB/s connect each GPU of node-0"),
        ("NV12", "8.0", 140.0, 12.0, "12 NVLinks of 20 GB/s"),
        ("PIX", "8.0", 18.0, 1.0, "the GPUs of node-0 are connected by PCIe"),
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
    assert "all_reduce of 16 MiB (float32) with gloo left incorrect values" in found.message
    assert str(found.ranks) == "0-3"
    assert_passes(bandwidth.find_contents_wrong, make_cpu_world(make_sweep(2.0)))
