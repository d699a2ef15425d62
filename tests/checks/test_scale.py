"""The families of network and environment over sixteen thousand simulated ranks."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from ddpdoctor.evidence import Cpus, Evidence, Link, RankSet, Rendezvous, SharedMemory
from ddpdoctor.judge import Finding, Registry, order_findings, run_checks
from ddpdoctor.testing import make_world
from ddpdoctor_checks import environment, network

NODES, NPROC = 2048, 8
LIMIT_S = 120.0
"""Takes about half a second here; the rest is for a machine that is busy with something else."""


@pytest.fixture(scope="module")
def healthy() -> Evidence:
    return make_world(NODES, NPROC)


@pytest.fixture(scope="module")
def registry() -> Registry:
    registry = Registry()
    registry.add_module(network)
    registry.add_module(environment)
    return registry


def judge(registry: Registry, world: Evidence) -> list[Finding]:
    started = time.perf_counter()
    rows, findings = run_checks(registry.checks, world)
    ordered = order_findings(findings, registry.checks)
    assert time.perf_counter() - started < LIMIT_S
    assert [row.id for row in rows if row.status == "error"] == []
    return ordered


@pytest.mark.unmeasured
def test_healthy_world_of_16384_ranks(registry: Registry, healthy: Evidence) -> None:
    assert judge(registry, healthy) == []


def test_one_odd_node_among_2048_is_found(registry: Registry, healthy: Evidence) -> None:
    odd = 1234
    ranks = tuple(
        replace(rank, variables={**rank.variables, "NCCL_PROTO": "Simple"}) if rank.node == odd else rank
        for rank in healthy.ranks
    )
    facts = replace(
        healthy.nodes[odd], versions={"python": "3.11.9", "torch": "2.12.1"}, advertised="127.0.1.1"
    )
    nodes = (*healthy.nodes[:odd], facts, *healthy.nodes[odd + 1 :])
    ranks = tuple(replace(rank, versions=facts.versions) if rank.node == odd else rank for rank in ranks)
    found = judge(registry, replace(healthy, nodes=nodes, ranks=ranks))
    mine = RankSet(range(odd * NPROC, (odd + 1) * NPROC))
    assert {each.code: each.ranks for each in found} == {
        "NET003": mine, "ENV004": mine, "ENV005": mine, "ENV013": mine,
    }  # fmt: skip
    assert found[0].code == "NET003"
    assert all(len(each.message) < 500 for each in found)


@pytest.mark.long
def test_trouble_on_every_node_is_told_in_few_sentences(registry: Registry, healthy: Evidence) -> None:
    nodes = tuple(
        replace(
            node,
            shared_memory=SharedMemory(1 << 20, 1 << 20),
            cpus=Cpus(2, 2),
            clock_offset_s=5.0,
            variables={"NODE_RANK": "9999", "NCCL_P2P_DISABLE": "1", "GLOO_SOCKET_IFNAME": "eth9"},
        )
        for node in healthy.nodes
    )
    found = judge(registry, replace(healthy, nodes=nodes))
    codes = [each.code for each in found]
    assert {"ENV008", "ENV011", "ENV015", "ENV006", "ENV013", "NET004"} <= set(codes)
    assert len(codes) == len(set(codes))
    assert all(len(each.message) < 500 for each in found)


@pytest.mark.long
def test_half_of_the_world_that_never_came(registry: Registry, healthy: Evidence) -> None:
    came = range(0, NODES, 2)
    joined = RankSet(rank for node in came for rank in range(node * NPROC, (node + 1) * NPROC))
    views = tuple(
        Rendezvous(node, "c10d", "node-0:29500", NODES, tuple(came), NODES * NPROC, joined, 60.0, 60.0)
        for node in list(came)[:64]
    )
    ranks = tuple(rank for rank in healthy.ranks if rank.node % 2 == 0)
    found = judge(registry, replace(healthy, rendezvous=views, ranks=ranks))
    assert [each.code for each in found] == ["NET006"]
    assert len(found[0].ranks) == NODES * NPROC // 2
    assert "8,192 of 16,384 ranks joined" in found[0].message
    assert len(found[0].message) < 500


@pytest.mark.long
def test_ring_of_broken_links_is_one_finding(registry: Registry, healthy: Evidence) -> None:
    links = tuple(
        Link(node, (node + 1) % NODES, "ephemeral", node % 3 != 0, error="timed out") for node in range(NODES)
    )
    found = judge(registry, replace(healthy, links=links))
    assert {each.code for each in found} <= {"NET013", "NET005"}
    assert len(found) <= 2
    assert sum(len(each.pairs) for each in found) == len([node for node in range(NODES) if node % 3 == 0])
    assert all(len(each.message) < 500 for each in found)
