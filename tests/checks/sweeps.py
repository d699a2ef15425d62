"""Made-up bandwidth sweeps and the worlds that they were measured in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ddpdoctor.evidence import BandwidthRow, Baseline, Cpus, Device, Evidence
from ddpdoctor.testing import (
    make_node,
    make_rank,
    make_world,
)

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
