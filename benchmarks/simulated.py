"""Made-up evidence of a large job, whole and as its nodes would send it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ddpdoctor.evidence import Evidence, NodeFacts, RankError, RankMessage, RankSet
from ddpdoctor.evidence.bundle import KINDS
from ddpdoctor.evidence.facts import Device
from ddpdoctor.testing import make_node, make_rank, make_world

SLOW = 0.25
"""Bandwidth of the bad node against the others'."""
VARIABLES = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "MASTER_ADDR": "node-0",
    "MASTER_PORT": "29500",
    "NCCL_IB_DISABLE": "0",
    "NCCL_IB_HCA": "mlx5_0,mlx5_1,mlx5_2,mlx5_3",
    "NCCL_SOCKET_IFNAME": "eth0",
    "OMP_NUM_THREADS": "8",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
}
"""What a job of this size usually sets, equal on all ranks."""


def make_healthy(nodes: int, nproc: int) -> Evidence:
    """Return a healthy world of ``nodes`` hosts with ``nproc`` ranks and as many accelerators each."""
    hosts = [_make_host(node, nproc) for node in range(nodes)]
    size = nodes * nproc
    ranks = tuple(_make_rank(rank, nproc, size) for rank in range(size))
    return make_world(hosts, nproc, ranks=ranks)


def _make_host(node: int, devices: int) -> NodeFacts:
    found = tuple(
        Device(
            index,
            uuid=f"GPU-{node:08x}-0000-4000-8000-{index:012x}",
            name="NVIDIA H100 80GB HBM3",
            capability="9.0",
            memory_total=80 << 30,
            memory_used=0,
            driver="550.54.15",
            ecc_uncorrected=0,
            links={str(peer): "NV18" for peer in range(devices) if peer != index},
        )
        for index in range(devices)
    )
    return make_node(node, devices=found, variables=dict(VARIABLES))


def _make_rank(rank: int, nproc: int, size: int) -> Any:
    made = make_rank(rank, nproc, size)
    return dataclasses.replace(made, variables={**VARIABLES, **made.variables})


def make_broken(nodes: int, nproc: int) -> Evidence:
    """Return the same world with troubles that touch everyone.

    One node is slow and has an older torch, one rank another setting, one rank failed in the gradient mean
    and every fourth of the others then lost its connection, each with a text of its own.
    """
    world = make_healthy(nodes, nproc)
    bad = nodes // 3
    culprit, size = bad * nproc, nodes * nproc
    facts = world.nodes[bad]
    older = dataclasses.replace(facts, versions={**facts.versions, "torch": "2.12.0"})
    rank = world.ranks[culprit]
    other = dataclasses.replace(rank, variables={**rank.variables, "NCCL_SOCKET_IFNAME": "eth1"})
    victims = [r for r in range(0, size, 4) if r != culprit]
    first = RankError(culprit, "ddp", "RuntimeError", "CUDA error: an illegal memory access was encountered")
    lost = (
        RankError(r, "ddp", "RuntimeError", f"Connection closed by peer [10.0.{r % 256}.1]:{r}")
        for r in victims
    )
    failure = RankMessage(RankSet([culprit]), "gradient differs from the mean over ranks by 0.25")
    return dataclasses.replace(
        world,
        nodes=_put(world.nodes, bad, older),
        ranks=_put(world.ranks, culprit, other),
        errors=(first, *lost),
        experiments=tuple(
            dataclasses.replace(
                each, passed=each.passed.minus(failure.ranks), failures=(failure,), tensor="0.weight"
            )
            if each.name == "gradient-mean"
            else each
            for each in world.experiments
        ),
        pairs=tuple(
            dataclasses.replace(p, bandwidth=p.bandwidth * SLOW, seconds=p.seconds / SLOW)
            if p.level == "node" and bad in (p.source, p.target)
            else p
            for p in world.pairs
        ),
    )


def _put(items: tuple[Any, ...], index: int, item: Any) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])


SHAPES: dict[str, Callable[[int, int], Evidence]] = {"healthy": make_healthy, "broken": make_broken}
"""Worlds that are judged."""


def split_by_node(world: Evidence, nproc: int) -> list[Evidence]:
    """Return what each node would send: its rows, and its ranks' share of the rows that ranks have in common."""
    parts: list[dict[str, list[Any]]] = [{} for _ in world.nodes]
    for kind in KINDS:
        for row in getattr(world, kind):
            for node, share in _share_row(row, len(parts), nproc):
                parts[node].setdefault(kind, []).append(share)
    made = []
    for node, part in enumerate(parts):
        rows: dict[str, Any] = {kind: tuple(shares) for kind, shares in part.items()}
        launch = dataclasses.replace(world.launch, node_rank=node)
        made.append(Evidence(launch=launch, absent=dict(world.absent), **rows))
    return made


def _share_row(row: Any, nodes: int, nproc: int) -> list[tuple[int, Any]]:
    names = {field.name for field in dataclasses.fields(row)}
    if "node" in names:
        return [(row.node, row)]
    if "rank" in names:
        return [(row.rank // nproc, row)]
    if "source" in names:
        return [(row.source // nproc if getattr(row, "level", "") == "rank" else row.source, row)]
    sets = {name: getattr(row, name) for name in names if isinstance(getattr(row, name), RankSet)}
    if not any(sets.values()):
        return [(0, row)]
    return [(node, _restrict(row, sets, range(node * nproc, (node + 1) * nproc))) for node in range(nodes)]


def _restrict(row: Any, sets: dict[str, RankSet], own: range) -> Any:
    """Return a row with only one node's ranks in it."""

    def keep(ranks: RankSet) -> RankSet:
        clipped = ((max(low, own.start), min(high, own.stop - 1)) for low, high in ranks.ranges)
        return RankSet.from_ranges((low, high) for low, high in clipped if low <= high)

    changes: dict[str, Any] = {name: keep(ranks) for name, ranks in sets.items()}
    if hasattr(row, "failures"):
        kept = ((keep(message.ranks), message.text) for message in row.failures)
        changes["failures"] = tuple(RankMessage(ranks, text) for ranks, text in kept if ranks)
    return dataclasses.replace(row, **changes)
