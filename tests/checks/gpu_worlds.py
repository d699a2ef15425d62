"""Made-up worlds of GPUs, and changes to worlds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ddpdoctor.evidence import (
    BackendResult,
    Device,
    Evidence,
    Frame,
    RankSet,
    SmokeResult,
)
from ddpdoctor.judge import Registry, order_findings, run_checks
from ddpdoctor.testing import (
    make_node,
    make_rank,
    make_world,
)
from ddpdoctor_checks import register

H200 = "GPU-6b1f52b0-7f5c-7a8e-0b6e-aa00000000"
ARCHES = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")
"""torch.cuda.get_arch_list() of a torch 2.8 wheel for CUDA 12.8."""

PROBE = Frame("/home/u/ddpdoctor/launch/probes/collectives.py", 88, "probe_collectives")
WAIT = (
    Frame("/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 2810, "all_reduce"),
    PROBE,
)
SLEEP = (
    Frame("/data/model.py", 12, "factory"),
    Frame("/v/site-packages/torch/nn/parallel/distributed.py", 1, "f"),
)


def make_device(index: int, **changes: Any) -> Device:
    facts = Device(
        index,
        uuid=f"{H200}{index:02d}",
        name="NVIDIA H200",
        capability="9.0",
        driver="570.124.06",
        ecc_uncorrected=0,
        pci=f"00000000:{index:02x}:00.0",
        links={str(other): "NV18" for other in range(8) if other != index},
    )
    return replace(facts, **changes)


def make_gpu_world(nproc: int = 2, nodes: int = 1, **changes: Any) -> Evidence:
    """A healthy world of H200s over NCCL."""
    hosts = [
        make_node(
            node,
            devices=tuple(make_device(i, uuid=f"{H200}-{node}-{i}") for i in range(nproc)),
            versions={"python": "3.11.9", "torch": "2.8.0", "cuda": "12.8", "driver": "570.124.06"},
        )
        for node in range(nodes)
    ]
    size = nproc * nodes
    ranks = tuple(
        make_rank(
            rank,
            nproc,
            size,
            device=f"cuda:{rank % nproc}",
            device_uuid=f"{H200}-{rank // nproc}-{rank % nproc}",
            visible_devices=nproc,
            arch_list=ARCHES,
            versions={"python": "3.11.9", "torch": "2.8.0", "cuda": "12.8"},
        )
        for rank in range(size)
    )
    everyone = RankSet.span(size)
    smoke = tuple(
        SmokeResult(
            node,
            f"cuda:{i}",
            True,
            kind=kind,
            peer=f"cuda:{(i + 1) % nproc}" if kind == "peer-copy" else None,
        )
        for node in range(nodes)
        for i in range(nproc)
        for kind in ("compute", "copy", "peer-copy")
    )
    backend = (
        BackendResult(
            "nccl", True, "cuda:0", asked=True, group=everyone, collective=everyone, version="2.27.3"
        ),
        BackendResult("gloo", True, "cpu", group=everyone, collective=everyone),
        *(BackendResult(name, False, reason="not in this PyTorch build") for name in ("mpi", "ucc", "xccl")),
    )
    world = make_world(hosts, nproc, ranks=ranks, smoke=smoke, backends=backend)
    world = replace(world, launch=replace(world.launch, backend="nccl"))
    return replace(world, **changes)


def with_launch(world: Evidence, **changes: Any) -> Evidence:
    return replace(world, launch=replace(world.launch, **changes))


def with_stage(world: Evidence, stage: str, **changes: Any) -> Evidence:
    return replace(
        world,
        stages=tuple(replace(each, **changes) if each.stage == stage else each for each in world.stages),
    )


def with_rank(world: Evidence, rank: int, **changes: Any) -> Evidence:
    return replace(
        world, ranks=tuple(replace(each, **changes) if each.rank == rank else each for each in world.ranks)
    )


def with_device(world: Evidence, index: int, **changes: Any) -> Evidence:
    node = world.nodes[0]
    devices = tuple(replace(each, **changes) if each.index == index else each for each in node.devices)
    return replace(world, nodes=(replace(node, devices=devices), *world.nodes[1:]))


def codes_in_order(evidence: Evidence) -> list[tuple[str, str]]:
    """Code and role of every finding of all built-in checks, root cause first."""
    registry = Registry()
    register(registry)
    _, findings = run_checks(registry.checks, evidence)
    return [(each.code, each.role) for each in order_findings(findings, registry.checks)]
