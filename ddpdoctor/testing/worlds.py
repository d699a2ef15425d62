"""Made-up evidence: worlds, hosts and ranks in which nothing is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ddpdoctor.evidence import (
    DEFAULT_STAGES,
    BackendResult,
    BandwidthRow,
    Baseline,
    CollectiveCase,
    Cpus,
    Evidence,
    Experiment,
    HostMatch,
    InitResult,
    Interface,
    Launch,
    Limits,
    Link,
    NodeFacts,
    PairRow,
    PortProbe,
    RankFacts,
    RankSet,
    Rendezvous,
    Resolution,
    SharedMemory,
    SmokeResult,
    StageRecord,
)

OPERATIONS = tuple(
    "send_recv isend_irecv batch_isend_irecv broadcast scatter gather reduce all_reduce all_gather "
    "all_gather_into_tensor reduce_scatter all_to_all barrier objects".split()
)
"""Operations of a made-up world: those that `check` tries."""
SIZES = (1 << 10, 1 << 20, 1 << 26)
"""Sizes of its sweep in bytes: a small, a middle and a large one."""
ALL_LINKS = 64
"""Nodes up to which all pairs are connected, as in `check`; more get a ring."""


def make_world(nodes: int | Sequence[NodeFacts] = 1, nproc: int = 2, **changes: Any) -> Evidence:
    """Return the evidence of a healthy world of CPU ranks that talk over gloo.

    Args:
        nodes: number of hosts, called ``node-0``, ``node-1`` and so on, or their facts as `make_node` gives them.
        nproc: ranks on each.
        changes: fields of `Evidence` to put in place of the made-up ones, e.g. ``bandwidth=()``.
    """
    hosts = tuple(make_node(node) for node in range(nodes)) if isinstance(nodes, int) else tuple(nodes)
    size = len(hosts) * nproc
    everyone = RankSet.span(size)
    launch = Launch(
        nnodes=len(hosts),
        nproc=nproc,
        world_size=size,
        node_rank=0,
        master_addr=hosts[0].host if len(hosts) > 1 else "127.0.0.1",
        master_port=29500,
        rdzv_backend="c10d",
        rdzv_endpoint=f"{hosts[0].host}:29500" if len(hosts) > 1 else "127.0.0.1:29500",
        rdzv_id="made-up",
        stages=DEFAULT_STAGES,
    )
    evidence = Evidence(
        launch=launch,
        nodes=hosts,
        ranks=tuple(make_rank(rank, nproc, size, host=hosts[rank // nproc].host) for rank in range(size)),
        stages=tuple(
            _make_stage(node, stage, nproc) for node in range(len(hosts)) for stage in DEFAULT_STAGES
        ),
        **_make_network(len(hosts), size, launch),
        **_make_results(everyone, len(hosts)),
    )
    return replace(evidence, **changes)


def _address(node: int) -> str:
    return f"10.0.{node // 250}.{node % 250 + 1}"


def make_node(node: int, **changes: Any) -> NodeFacts:
    """Return the facts of one healthy host; ``changes`` are fields of `NodeFacts`."""
    address = _address(node)
    facts = NodeFacts(
        node=node,
        host=f"node-{node}",
        fqdn=f"node-{node}",
        boot_id=f"boot-{node}",
        name_addresses=(address,),
        advertised=address,
        advertised_interface="eth0",
        route_address=address,
        route_interface="eth0",
        interfaces=(
            Interface("lo", ("127.0.0.1",), loopback=True, mtu=65536),
            Interface("eth0", (address,), mtu=1500, speed_mbps=10000),
        ),
        ephemeral_ports=(32768, 60999),
        cpus=Cpus(logical=64, affinity=64),
        memory_total=256 << 30,
        shared_memory=SharedMemory(total=128 << 30, free=128 << 30),
        limits=Limits(open_files=1 << 20, open_files_hard=1 << 20),
        versions={"python": "3.11.9", "torch": "2.13.0"},
        clock_offset_s=0.0,
        clock_error_s=0.001,
        rendezvous_files=(),
    )
    return replace(facts, **changes)


def make_rank(rank: int, nproc: int, world_size: int, **changes: Any) -> RankFacts:
    """Return one healthy rank; ``changes`` are fields of `RankFacts`."""
    node = rank // nproc
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % nproc),
        "GROUP_RANK": str(node),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(nproc),
    }
    facts = RankFacts(
        rank=rank,
        local_rank=rank % nproc,
        node=node,
        host=f"node-{node}",
        pid=1000 + rank,
        world_size=world_size,
        variables=variables,
        threads=max(1, 64 // nproc),
        versions={"python": "3.11.9", "torch": "2.13.0"},
    )
    return replace(facts, **changes)


def _make_stage(node: int, stage: str, nproc: int) -> StageRecord:
    local = stage in ("facts", "smoke", "tcp")
    ranks = RankSet() if local else RankSet(range(node * nproc, (node + 1) * nproc))
    return StageRecord(
        node,
        stage,
        "passed",
        started_s=0.1 * DEFAULT_STAGES.index(stage),
        duration_s=0.1,
        limit_s=30.0,
        finished=ranks,
    )


def _make_network(nodes: int, size: int, launch: Launch) -> dict[str, Any]:
    hosts = range(nodes) if nodes > 1 else ()
    pairs = [
        (a, b)
        for a in hosts
        for b in hosts
        if a != b and (nodes <= ALL_LINKS or (b - a) % nodes in (1, nodes - 1))
    ]
    endpoint = launch.rdzv_endpoint or ""
    return {
        "resolutions": (
            *(
                Resolution(node, launch.master_addr or "", "master", addresses=("10.0.0.1",))
                for node in hosts
            ),
            *(Resolution(a, f"node-{b}", "peer", of_node=b, addresses=(_address(b),)) for a, b in pairs),
        ),
        "ports": (PortProbe(0, launch.master_port or 0, "free"),),
        "links": tuple(
            Link(a, b, kind, True, seconds=0.0002) for a, b in pairs for kind in ("ephemeral", "large")
        ),
        "host_matches": tuple(
            HostMatch(node, endpoint, matches=node == 0, names=(f"node-{node}",)) for node in range(nodes)
        ),
        "rendezvous": tuple(
            Rendezvous(
                node, "c10d", endpoint, nodes, tuple(range(nodes)), size, RankSet.span(size), 0.2, 60.0
            )
            for node in range(nodes)
        ),
    }


def _make_results(everyone: RankSet, nodes: int) -> dict[str, Any]:
    cases = [("float32", 1000), ("int64", 7)]
    experiments = (
        "gradient-mean",
        "replicas-equal",
        "autocast",
        "grad-scaler",
        "no-sync",
        "unused-named",
        "checkpoint",
    )
    return {
        "backends": (
            BackendResult("gloo", True, "cpu", asked=True, group=everyone, collective=everyone),
            *(BackendResult(name, False, reason="not built") for name in ("nccl", "mpi", "ucc", "xccl")),
        ),
        "smoke": tuple(SmokeResult(node, "cpu", True, seconds=0.01) for node in range(nodes)),
        "collectives": tuple(
            CollectiveCase(op, "gloo", dtype, count, "sum" if "reduce" in op else None, group, everyone)
            for op in OPERATIONS
            for dtype, count in cases
            for group in ("world", "sub-group")
        ),
        "initialisations": tuple(InitResult(method, everyone) for method in ("env", "tcp", "file")),
        "experiments": tuple(Experiment(name, everyone) for name in experiments),
        "bandwidth": tuple(_make_bandwidth(size, len(everyone)) for size in SIZES),
        "baselines": (Baseline(0, "loopback-copy", 4.4),),
        "pairs": (*_make_pairs(len(everyone), "rank"), *_make_pairs(nodes, "node")),
    }


def _make_pairs(count: int, level: str) -> list[PairRow]:
    """Each sends to its two neighbours of a ring, all at one speed."""
    ring = [(a, (a + step) % count) for a in range(count) for step in (1, -1)]
    pairs = dict.fromkeys((a, b) for a, b in ring if a != b)
    return [PairRow(a, b, level, bytes=1 << 22, seconds=(1 << 22) / 1e9, bandwidth=1.0) for a, b in pairs]


def _make_bandwidth(size: int, ranks: int) -> BandwidthRow:
    """One row at 1.2 GB/s and 60 microseconds, what gloo gives over loopback."""
    seconds = 60e-6 + size / 1.2e9
    factor = 2 * (ranks - 1) / ranks
    algbw = size / seconds / 1e9
    busbw = algbw * factor
    return BandwidthRow(
        op="all_reduce",
        backend="gloo",
        dtype="float32",
        bytes=size,
        ranks=ranks,
        iterations=5,
        seconds=seconds,
        seconds_min=seconds * 0.9,
        seconds_max=seconds * 1.1,
        algbw=algbw,
        busbw=busbw,
        busbw_min=busbw * 0.9,
        busbw_max=busbw * 1.1,
        correct=True,
    )
