"""Real worlds of gloo ranks for tests: run a probe on each rank, bring home what it emitted.

Ranks come from a forkserver with torch preloaded: a plain fork of a process with torch's threads deadlocks.
"""

from __future__ import annotations

import dataclasses
import gc
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from ddpdoctor.evidence import Evidence, Launch, merge_evidence
from ddpdoctor.gather import machine
from ddpdoctor.launch.context import RankContext
from ddpdoctor.launch.plan import Plan

PATIENCE_S = 120.0
"""After this a world is a failed test: generous, the machine may be busy with others' work."""

Probe = Callable[[RankContext], object]
"""Runs in each rank; must be picklable, so defined at module level."""
Patch = Callable[[RankContext], None]
"""Breaks something in one rank before the probe runs; picklable too."""


@dataclass
class RankReport:
    """What one rank sent home."""

    rank: int
    rows: list[tuple[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: str | None = None
    """Type and message of what the probe raised."""
    seconds: float = 0.0
    result: Any = None


@dataclass
class World:
    """What came of a world."""

    reports: list[RankReport]

    def __post_init__(self) -> None:
        self.reports.sort(key=lambda report: report.rank)

    @property
    def errors(self) -> dict[int, str]:
        """What each rank raised."""
        return {report.rank: report.error for report in self.reports if report.error is not None}

    @property
    def seconds(self) -> float:
        """Duration of the probe on the slowest rank."""
        return max(report.seconds for report in self.reports)

    @property
    def evidence(self) -> Evidence:
        """Everything that was emitted, folded over ranks, after a trip through its JSON form."""
        return Evidence.from_dict(merge_evidence([_bundle(report) for report in self.reports]).to_dict())


def _bundle(report: RankReport) -> Evidence:
    kinds: dict[str, Any] = {}
    for kind, row in report.rows:
        kinds[kind] = (*kinds.get(kind, ()), row)
    return Evidence(**kinds)


def make_plan(workdir: Path, world_size: int, **changes: Any) -> Plan:
    """Return a plan for one node; ``changes`` are fields of `Plan`."""
    changes.setdefault("launch", Launch(nproc=world_size, world_size=world_size))
    return Plan(workdir=str(workdir), **changes)


def run_world(
    probe: Probe,
    world_size: int,
    workdir: Path,
    *,
    patch: Patch | None = None,
    nodes: int = 1,
    apart: bool = False,
    group: bool = True,
    timeout_s: float = 30.0,
    **changes: Any,
) -> World:
    """Run ``probe`` on ``world_size`` ranks and wait for them.

    Args:
        probe: what each rank runs.
        world_size: number of ranks.
        workdir: a directory for the ranks' files.
        patch: runs in each rank before the probe.
        nodes: pretend that the ranks are spread evenly over so many nodes, each with a machine of its own.
        apart: give each rank a directory of its own, as the ranks of another launcher have.
        group: make the default process group first.
        timeout_s: time-out of the group.
        changes: fields of the plan.

    Raises:
        AssertionError: a rank died without a word or did not end in time.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "torch", "torch.distributed", "tests.launch.worlds"])
    plan = make_plan(workdir, world_size, **changes)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    setting = _Setting(plan, world_size, world_size // nodes, store.port, group, timeout_s, apart)
    processes, pipes = [], []
    for rank in range(world_size):
        near, far = context.Pipe()
        process = context.Process(target=_run_rank, args=(rank, setting, probe, patch, far), daemon=True)
        process.start()
        far.close()
        processes.append(process)
        pipes.append(near)
    try:
        return World(_collect(pipes))
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()


def _collect(pipes: Sequence[Connection]) -> list[RankReport]:
    deadline = time.monotonic() + PATIENCE_S
    reports = []
    for rank, pipe in enumerate(pipes):
        assert pipe.poll(max(0.0, deadline - time.monotonic())), f"rank {rank} did not end"
        try:
            reports.append(pipe.recv())
        except EOFError:
            raise AssertionError(f"rank {rank} died without a word") from None
    return reports


@dataclass(frozen=True)
class _Setting:
    plan: Plan
    world_size: int
    local_size: int
    port: int
    group: bool
    timeout_s: float
    apart: bool


def _run_rank(rank: int, setting: _Setting, probe: Probe, patch: Patch | None, pipe: Connection) -> None:
    gc.freeze()  # as the real ranks do: collecting over torch's own objects takes 0.2 s
    torch.set_num_threads(1)
    report = RankReport(rank)
    plan = setting.plan
    if setting.apart:
        plan = dataclasses.replace(plan, workdir=tempfile.mkdtemp(dir=plan.workdir))
    ctx = RankContext(
        rank=rank,
        world_size=setting.world_size,
        local_rank=rank % setting.local_size,
        local_world_size=setting.local_size,
        node=rank // setting.local_size,
        host="testhost",
        device="cpu",
        backend="gloo",
        plan=plan,
        emit=lambda kind, row: report.rows.append((kind, row)),
        note=report.notes.append,
    )
    limit = timedelta(seconds=setting.timeout_s)
    store = TCPStore("127.0.0.1", setting.port, is_master=False, timeout=limit)
    if setting.group:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=setting.world_size, timeout=limit)
    if setting.local_size < setting.world_size:
        machine.boot_id = lambda root=None: f"machine-{ctx.node}"
    try:
        if patch is not None:
            patch(ctx)
        begun = time.perf_counter()
        report.result = probe(ctx)
        report.seconds = time.perf_counter() - begun
    except Exception as problem:
        report.error = f"{type(problem).__name__}: {problem}"
    pipe.send(report)
    # A rank that leaves closes its connections, which is an error to those that are not done: wait for all.
    pipe.poll(PATIENCE_S)
    # Not a normal exit: torch 2.13 aborts some healthy ranks while the interpreter shuts down.
    os._exit(0)
