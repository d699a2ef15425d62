"""A bandwidth sweep as nccl-tests defines it, within a budget of time that all ranks keep together.

All sizes are warmed up before any is timed. Decisions (where to stop growing, how often to repeat) are
computed on every rank from times that were reduced to the slowest rank's, so all ranks come to the same ones
and no clock decides alone. An iteration takes as long as it takes its slowest rank. Contents are checked
outside of the timed region.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist

from ddpdoctor.evidence import BandwidthRow
from ddpdoctor.launch.context import RankContext
from ddpdoctor.launch.defects import pass_defect
from ddpdoctor.launch.probes.bandwidth.baselines import measure_baselines
from ddpdoctor.launch.probes.bandwidth.transfers import OPERATIONS, Operation, Transfer
from ddpdoctor.launch.probes.base import ProbeError, find_refusal, synchronize, word_exception

KIB, MIB = 1024, 1024 * 1024

SIZES = (KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
"""Bytes of all_reduce by default: from where latency rules to where bandwidth does (NVLink: about 64 MiB)."""

SHORT_SIZES = (KIB, MIB, 4 * MIB, 16 * MIB)
"""Bytes of the other operations by default."""

FULL_SIZES = tuple(KIB * 4**power for power in range(10))
"""Bytes of all operations with ``--full``: 1 KiB to 256 MiB."""

DEFAULT_OPERATIONS = ("all_reduce", "all_gather", "broadcast")
"""What DDP uses: gradients, object collectives of set-up, parameters at the wrap."""

BUDGET_S = {"all_reduce": 0.3, "all_gather": 0.06, "broadcast": 0.06}
"""Seconds for each operation by default. With pairs and baselines the stage keeps to about 0.6 s, so that the
whole check stays below the time that torchrun needs for hello-world (docs: the bar in README)."""

FULL_SHARE = 0.6
"""Part of the stage's limit that ``--full`` uses: the rest is for a machine that slows down meanwhile."""

NODE_MEMORY = 1024 * MIB
"""Bytes of buffers that all ranks of a node take together, unless sizes were given: `check` with 64 ranks is
to stay below 8 GiB."""

KNEE = 256 * KIB
"""Up to about this size a call takes as long as its messages' latency (seen on gloo and on NCCL alike)."""

BRIEF = 1 / 30
"""Part of the budget below which a call is short enough to be estimated from the better of two."""

FEWEST, MOST, MOST_FULL = 3, 10, 100
"""Iterations of one size. Three give a median that one disturbance does not move;
nccl-tests makes 20."""

OVERHEAD = 3.0
"""Calls' worth of time that a size costs beside its timed iterations: warm-up, filling, comparing."""


@dataclass(slots=True)
class _Step:
    """One size of one operation."""

    transfer: Transfer
    estimate: float
    """Seconds of one call of the slowest rank, warmed up."""


def probe_bandwidth(ctx: RankContext) -> None:
    """Measure the baselines of each node and sweep the operations.

    Emits `Baseline` rows from local rank 0 of each node and `BandwidthRow` rows from rank 0. A world of one
    rank has only baselines.

    Raises:
        ProbeError: an operation raised something other than a refusal.
    """
    ctx.note("memory and loopback")
    measure_baselines(ctx)
    if ctx.world_size < 2:
        return
    plan = ctx.plan
    operations = plan.collectives or (tuple(OPERATIONS) if plan.full else DEFAULT_OPERATIONS)
    for name in operations:
        try:
            _sweep(ctx, OPERATIONS[name], share_budget(ctx, name, len(operations)))
        except Exception as problem:
            pass_defect(problem)
            if find_refusal(problem) is None:
                raise ProbeError(f"bandwidth of {name}: {word_exception(problem)}") from problem
            ctx.note(f"{name}: {find_refusal(problem)}")


def share_budget(ctx: RankContext, name: str, operations: int) -> float:
    """Return the seconds that one of so many operations may take."""
    if ctx.plan.full:
        return FULL_SHARE * ctx.limit("bandwidth") / operations
    return BUDGET_S.get(name, min(BUDGET_S.values()))


def choose_sizes(ctx: RankContext, name: str) -> tuple[int, ...]:
    """Return the sizes to try, ascending; those given are taken as they are."""
    if ctx.plan.sizes:
        return tuple(sorted(ctx.plan.sizes))
    sizes = FULL_SIZES if ctx.plan.full else SIZES if name == "all_reduce" else SHORT_SIZES
    most = NODE_MEMORY // (2 * ctx.local_world_size)
    return tuple(size for size in sizes if size <= most) or sizes[:1]


def _sweep(ctx: RankContext, operation: Operation, budget: float) -> None:
    steps, spent = _warm_up(ctx, operation, budget)
    share = (budget - spent) / len(steps)
    for step in steps:
        ctx.note(f"{operation.name} of {step.transfer.bytes:,} bytes")
        iterations = ctx.plan.iterations or count_iterations(step.estimate, share, ctx.plan.full)
        times = _time(ctx, step.transfer, iterations)
        correct = _verify(ctx, step.transfer)
        if ctx.rank == 0:
            ctx.emit("bandwidth", describe_row(ctx.backend, step.transfer, times, correct))


def _warm_up(ctx: RankContext, operation: Operation, budget: float) -> tuple[list[_Step], float]:
    """Run every size, smallest first, until the next would not fit into the budget.

    Returns:
        The sizes that were run, and the seconds that the slowest rank spent.
    """
    begun = time.perf_counter()
    sizes = choose_sizes(ctx, operation.name)
    steps: list[_Step] = []
    spent = 0.0
    for index, size in enumerate(sizes):
        transfer = Transfer(operation, size, ctx.rank, ctx.world_size, ctx.device)
        if not steps:
            _call(ctx, transfer)  # the very first makes connections
        # one disturbance of a short call must not end the sweep, and a long call is told apart anyhow
        calls = 2 if not steps or steps[-1].estimate < budget * BRIEF else 1
        estimate = min(_call(ctx, transfer) for _ in range(calls))
        estimate, spent = agree_on_slowest([estimate, time.perf_counter() - begun], ctx.device)
        steps.append(_Step(transfer, estimate))
        following = sizes[index + 1] if index + 1 < len(sizes) else 0
        if not ctx.plan.sizes and spent + predict_cost(estimate, size, following) > budget:
            break
    return steps, spent


def predict_cost(estimate: float, size: int, following: int) -> float:
    """Return the seconds that size ``following`` will cost, from one call of ``size``.

    Below `KNEE` latency rules and time hardly grows, above it is in proportion to the bytes. What the smaller
    sizes take is left out: together less than a third of the last, since sizes grow by four and more.
    """
    return estimate * max(following, KNEE) / max(size, KNEE) * (FEWEST + OVERHEAD)


def count_iterations(estimate: float, budget: float, full: bool = False) -> int:
    """Return how often to repeat one size."""
    fitting = int(budget / max(estimate, 1e-9) - OVERHEAD)
    return max(FEWEST, min(fitting, MOST_FULL if full else MOST))


def agree_on_slowest(times: Sequence[float], device: str) -> list[float]:
    """Return for each entry the largest of all ranks; the same list on every rank."""
    values = torch.tensor(times, dtype=torch.float64, device=device)
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    slowest: list[float] = values.tolist()
    return slowest


def _call(ctx: RankContext, transfer: Transfer) -> float:
    begun = time.perf_counter()
    transfer.calls.run()
    synchronize(ctx.device)
    return time.perf_counter() - begun


def _time(ctx: RankContext, transfer: Transfer, iterations: int) -> list[float]:
    """Return the slowest rank's seconds of each iteration."""
    times = []
    for _ in range(iterations):
        if transfer.operation.rooted:
            dist.barrier()
        times.append(_call(ctx, transfer))
    return agree_on_slowest(times, ctx.device)


def _verify(ctx: RankContext, transfer: Transfer) -> bool:
    """Return whether one more call gives the right contents on all ranks."""
    transfer.calls.fill()
    transfer.calls.run()
    synchronize(ctx.device)
    return agree_on_slowest([0.0 if transfer.calls.check() else 1.0], ctx.device)[0] == 0.0


def describe_row(backend: str, transfer: Transfer, times: Sequence[float], correct: bool) -> BandwidthRow:
    """Return the row of one size: algbw = S/t, busbw = algbw x factor, GB = 1e9 bytes."""
    middle, least, most = median(times), min(times), max(times)
    factor = transfer.operation.factor(transfer.size)
    algbw = transfer.bytes / middle / 1e9
    return BandwidthRow(
        op=transfer.operation.name,
        backend=backend,
        dtype="float32",
        bytes=transfer.bytes,
        ranks=transfer.size,
        iterations=len(times),
        seconds=middle,
        seconds_min=least,
        seconds_max=most,
        algbw=algbw,
        busbw=algbw * factor,
        busbw_min=transfer.bytes / most / 1e9 * factor,
        busbw_max=transfer.bytes / least / 1e9 * factor,
        correct=correct,
    )
