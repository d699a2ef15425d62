"""Each backend that torch knows: is it built, is its device there, does a group form, does it add up."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ddpdoctor.evidence import BackendResult, RankMessage, RankSet
from ddpdoctor.launch.context import RankContext
from ddpdoctor.launch.defects import pass_defect
from ddpdoctor.launch.probes.base import ProbeError, agree_on_all, word_exception
from ddpdoctor.launch.probes.collectives import compare_outcome
from ddpdoctor.launch.probes.exact_values import make_input, make_result
from ddpdoctor.launch.probes.facts import read_nccl_version
from ddpdoctor.launch.probes.groups import leave_group
from ddpdoctor.launch.probes.operations import Outcome

BACKENDS: dict[str, tuple[str, ...]] = {
    "gloo": ("cpu",),
    "nccl": ("cuda",),
    "mpi": ("cpu",),
    "ucc": ("cuda", "cpu"),
    "xccl": ("xpu",),
}
"""Backend -> device types that it works on, the preferred one first (``Backend.backend_capability`` in
torch/distributed/distributed_c10d.py). ``fake`` moves no data and is left out. On ROCm RCCL is named nccl."""

MPI_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "MPI_LOCALNRANKS")
"""Set for their processes by Open MPI, MPICH and Intel MPI, PMIx launchers, and MPICH's hydra."""

COUNT = 1023
"""Elements of the all_reduce: odd, a few kilobytes."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A backend as this rank sees it before it is tried."""

    name: str
    built: bool
    device: str | None
    reason: str | None
    """Why this rank cannot try it."""
    present: bool = True
    """Some device of its type is there, though perhaps not one for each rank."""


def probe_backends(ctx: RankContext) -> None:
    """Try the default group, then each other backend that every rank can try, in a group of its own.

    Emits one `BackendResult` for each backend.

    Raises:
        ProbeError: the default group's all_reduce raised: the ranks may be out of step.
    """
    asked = get_main_backend(ctx.backend, ctx.device)
    ctx.note(f"backend {asked}")
    if asked not in BACKENDS:
        _try_default(ctx, _Candidate(asked, True, ctx.device, None))
    candidates = [examine_backend(name, ctx) for name in BACKENDS]
    for each in candidates:
        if each.name == asked:
            _try_default(ctx, each)
    # All must try a backend, or none.
    ready = agree_on_all([each.reason is None for each in candidates], ctx.device)
    for each, everywhere in zip(candidates, ready, strict=True):
        if each.name == asked:
            continue
        if everywhere:
            ctx.note(f"backend {each.name}")
            _try_group(ctx, each)
        else:
            reason = each.reason or "other ranks cannot use it"
            ctx.emit("backends", _describe(each, reason=reason))


def get_main_backend(backend: str, device: str) -> str:
    """Return the name of the backend that serves ``device``: ``nccl`` for ``cpu:gloo,cuda:nccl`` on cuda."""
    if ":" not in backend:
        return backend
    served = dict(part.split(":", 1) for part in backend.split(","))
    return served.get(device.split(":")[0], next(iter(served.values())))


def is_built(name: str) -> bool:
    """Whether this torch has the backend; asked by attribute, since torch gained the questions one by one."""
    question: Callable[[], bool] | None = getattr(dist, f"is_{name}_available", None)
    return bool(question()) if question is not None else False


def examine_backend(name: str, ctx: RankContext, environ: Mapping[str, str] | None = None) -> _Candidate:
    """Return what this rank can say of a backend without trying it."""
    if not is_built(name):
        return _Candidate(name, False, None, "not in this PyTorch build")
    if name == "mpi" and not any(key in (environ or os.environ) for key in MPI_VARIABLES):
        return _Candidate(name, True, "cpu", "needs ranks that were started by mpirun")
    tried = []
    for kind in BACKENDS[name]:
        count = count_devices(kind)
        if kind in (ctx.device.split(":")[0], "cpu"):
            return _Candidate(name, True, "cpu" if kind == "cpu" else ctx.device, None)
        if count >= ctx.local_world_size:
            return _Candidate(name, True, f"{kind}:{ctx.local_rank}", None)
        reason = f"{count} {kind} devices for {ctx.local_world_size} ranks on this node"
        tried.append(_Candidate(name, True, None, reason if count else _ABSENT.format(kind), count > 0))
    return tried[0]


_ABSENT = "torch sees no {} device here"


def count_devices(kind: str) -> int:
    """Return how many devices of a type torch sees; asked by attribute, not every torch has every type."""
    module: Any = getattr(torch, kind, None)
    if module is None or not hasattr(module, "device_count") or not module.is_available():
        return 0
    return int(module.device_count())


def _try_default(ctx: RankContext, candidate: _Candidate) -> None:
    ranks, failures = RankSet([ctx.rank]), []
    try:
        wrong = _try_sum(ctx, None, ctx.device)
    except Exception as problem:
        pass_defect(problem)
        failures = [RankMessage(ranks, word_exception(problem))]
        ctx.emit("backends", _describe(candidate, asked=True, group=ranks, failures=failures))
        raise ProbeError(f"the first all_reduce of {candidate.name} failed: {failures[0].text}") from problem
    failures = [RankMessage(ranks, wrong)] if wrong else []
    passed = RankSet() if wrong else ranks
    ctx.emit("backends", _describe(candidate, asked=True, group=ranks, collective=passed, failures=failures))


def _try_group(ctx: RankContext, candidate: _Candidate) -> None:
    """Form a second group; what fails there leaves the default group in step."""
    ranks = RankSet([ctx.rank])
    formed = passed = RankSet()
    text: str | None = None
    group = None
    try:
        group = dist.new_group(backend=candidate.name, timeout=ctx.group_timeout("backends"))
        formed = ranks
        text = _try_sum(ctx, group, candidate.device or "cpu")
    except Exception as problem:
        pass_defect(problem)
        text = word_exception(problem)
    if text is None:
        passed = ranks
    failures = [RankMessage(ranks, text)] if text else []
    ctx.emit("backends", _describe(candidate, group=formed, collective=passed, failures=failures))
    if group is not None and text is None:
        leave_group(group)


def _try_sum(ctx: RankContext, group: Any, device: str) -> str | None:
    """Return what is wrong with a small all_reduce, or None."""
    buffer = make_input("SUM", ctx.rank, ctx.world_size, COUNT, torch.float32, device)
    dist.all_reduce(buffer, group=group)
    expected = make_result("SUM", ctx.world_size, COUNT, torch.float32, device)
    return compare_outcome(Outcome(buffer, expected))


def _describe(
    candidate: _Candidate,
    *,
    asked: bool = False,
    group: RankSet | None = None,
    collective: RankSet | None = None,
    failures: list[RankMessage] | None = None,
    reason: str | None = None,
) -> BackendResult:
    return BackendResult(
        backend=candidate.name,
        built=candidate.built,
        device=None if reason else candidate.device,
        device_present=candidate.present,
        asked=asked,
        group=group or RankSet(),
        collective=collective or RankSet(),
        failures=tuple(failures or ()),
        reason=reason,
        version=_read_version(candidate),
    )


def _read_version(candidate: _Candidate) -> str | None:
    if candidate.name != "nccl" or not candidate.built:
        return None
    version = read_nccl_version()
    return f"RCCL {version}" if version and getattr(torch.version, "hip", None) else version
