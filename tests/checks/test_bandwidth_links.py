"""Slow nodes, ranks and links; worlds of 16,384 ranks."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import Evidence, PairRow, RankSet
from ddpdoctor.judge import run_checks
from ddpdoctor.testing import (
    assert_finds,
    assert_passes,
    assert_status,
    collect_checks,
    judge_one,
    make_world,
)
from ddpdoctor_checks import bandwidth
from ddpdoctor_checks.bandwidth.slow_links import SLOW_TCP, find_slowness
from tests.checks.sweeps import make_cpu_world, make_gpu_world, make_sweep


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


def test_a_short_burst_that_is_faster_than_its_link_says_nothing_of_the_others() -> None:
    rows = list(make_pairs(4, links=[(1, 2)]))
    burst = next(n for n, row in enumerate(rows) if (row.source, row.target) == (1, 0))
    rows[burst] = replace(rows[burst], bytes=256 << 10, bandwidth=10 * rows[burst].bandwidth)
    found = assert_finds(bandwidth.find_link_slow, node_world(tuple(rows)), id="bw.links.nodes")
    assert found.pairs == (("node-1", "node-2"),)


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
    assert why == "4 ranks share 2 cores of node-0: their pairs would measure the scheduler"


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


@pytest.mark.unmeasured
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
    assert time.perf_counter() - started < 120  # not quadratic; the bar itself is the benchmark's
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
