"""Experiments with DistributedDataParallel whose outcome is known beforehand."""

from __future__ import annotations

import gc
from collections.abc import Callable

from ddpdoctor.launch.context import RankContext
from ddpdoctor.launch.defects import pass_defect
from ddpdoctor.launch.probes.base import ProbeError, preserved_random_state, word_exception
from ddpdoctor.launch.probes.checkpoint import try_checkpoint
from ddpdoctor.launch.probes.deferral import deferred_compiler
from ddpdoctor.launch.probes.trials import (
    Bench,
    Verdict,
    build_bench,
    emit_verdict,
    try_autocast,
    try_grad_scaler,
    try_gradient_mean,
    try_no_sync,
    try_replicas_equal,
    try_unused_named,
)

EXPERIMENTS: dict[str, Callable[[Bench], Verdict]] = {
    "gradient-mean": try_gradient_mean,
    "no-sync": try_no_sync,
    "autocast": try_autocast,
    "replicas-equal": try_replicas_equal,
    "grad-scaler": try_grad_scaler,
    "checkpoint": try_checkpoint,
    "unused-named": try_unused_named,
}
"""Name -> experiment, in the order in which they run."""


def probe_ddp(ctx: RankContext) -> None:
    """Run all experiments and emit one `Experiment` for each.

    Raises:
        ProbeError: one raised, so that the ranks may be out of step; it has been emitted as a failure.
    """
    try:
        with preserved_random_state(), deferred_compiler():
            _run_all(ctx)
    finally:
        # A DDP object that is alive when the interpreter ends can abort the process (seen with torch 2.13),
        # and it must go before its process group does.
        gc.collect()


def _run_all(ctx: RankContext) -> None:
    bench: Bench | None = None
    for name, experiment in EXPERIMENTS.items():
        ctx.note(f"experiment {name}")
        try:
            bench = bench or build_bench(ctx)
            verdict = experiment(bench)
        except Exception as problem:
            pass_defect(problem)
            text = word_exception(problem)
            emit_verdict(ctx, "experiments", name, Verdict(wrong=[text]))
            raise ProbeError(f"the experiment {name} failed: {text}") from problem
        emit_verdict(ctx, "experiments", name, verdict)
