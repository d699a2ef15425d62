"""From a request, the environment and the machine to a plan: who the ranks are and where they meet."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from ddpdoctor.errors import UsageError
from ddpdoctor.evidence import STAGES, Launch
from ddpdoctor.gather.devices.accelerators import count_nvidia_devices
from ddpdoctor.gather.launcher import SRUN, TORCHRUN, Detected, detect_launcher
from ddpdoctor.gather.network.ports import free_port
from ddpdoctor.gather.variables import allowed_variables
from ddpdoctor.launch.local import LocalFindings
from ddpdoctor.launch.plan import DEFAULT_LIMITS, Plan
from ddpdoctor.launch.request import CheckRequest

WORLD_STAGES = STAGES[STAGES.index("rendezvous") :]
DEFAULT_PORT = 29500
"""torchrun's own default for --master-port and for an endpoint without a port."""
DEFAULT_NPROC_CPU = 4
"""Ranks without accelerators when nobody says how many: enough for every pattern (three ranks show a wrong
interface
that two hide), small enough for a laptop."""
MEETING_TIMEOUT_S = 60.0
"""How long the first node waits for the others: people start them by hand one after another."""
RANKS_PER_CORE_FREE = 4
"""Up to here the limits of the stages hold as they are; beyond, they grow with the ranks per core."""
WORLD_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
)
"""Variables that describe a launch; the elastic agent sets its own, so an inherited one is evidence and no
more."""


def make_plan(request: CheckRequest, workdir: str, environ: Mapping[str, str] | None = None) -> Plan:
    """Return the plan as far as it can be made before the machine has been looked at.

    Raises:
        UsageError: the request and the environment cannot both be followed.
    """
    environ = os.environ if environ is None else environ
    launcher = detect_launcher(environ)
    stages = _with_rendezvous(request.stages)
    base = Plan(
        launch=Launch(stages=stages, strategies=request.strategies),
        workdir=workdir,
        stages=stages,
        limits={**DEFAULT_LIMITS, **request.limits},
        join_timeout=request.join_timeout or MEETING_TIMEOUT_S,
        full=request.full,
        collectives=request.collectives,
        sizes=request.sizes,
        iterations=request.iterations,
    )
    if launcher.is_rank and not request.explicit_world():
        return _plan_external(base, request, launcher, environ)
    return _plan_own(base, _with_pet(request, environ), environ)


def _with_rendezvous(stages: tuple[str, ...]) -> tuple[str, ...]:
    """Every stage of the world needs the rendezvous, whatever was selected."""
    needs = any(stage in stages for stage in WORLD_STAGES)
    return tuple(s for s in STAGES if s in stages or (needs and s == "rendezvous"))


def _plan_external(base: Plan, request: CheckRequest, launcher: Detected, environ: Mapping[str, str]) -> Plan:
    if launcher.missing:
        raise UsageError(
            f"started by {launcher.launcher}, but {', '.join(launcher.missing)} cannot be determined",
            hint=f"export {launcher.missing[0]}=… for every rank",
        )
    rank, size = launcher.rank or 0, launcher.world_size or 1
    launch = dataclasses.replace(
        base.launch,
        launcher=launcher.launcher,
        nnodes=launcher.nnodes or 1,
        nproc=1,
        world_size=size,
        node_rank=launcher.node_rank or 0,
        master_addr=launcher.master_addr,
        master_port=launcher.master_port or DEFAULT_PORT,
        rdzv_backend="env",
        rdzv_endpoint=f"{launcher.master_addr}:{launcher.master_port or DEFAULT_PORT}",
        rdzv_id=launcher.run_id or "ddpdoctor",
        backend_asked=request.backend,
        model=request.model,
    )
    return dataclasses.replace(
        base,
        launch=launch,
        node=launcher.node_rank or 0,
        party=rank,
        parties=size,
        leads=not launcher.local_rank,
        external=True,
        first_rank=rank,
        local_rank=launcher.local_rank or 0,
        local_world_size=launcher.local_world_size or 1,
        told=_tells_layout(launcher),
        agent_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _tells_layout(launcher: Detected) -> bool:
    """Whether the launcher itself knows its nodes: mpirun numbers none, and variables set by hand may be anything."""
    known = (launcher.node_rank, launcher.nnodes, launcher.local_rank, launcher.local_world_size)
    return launcher.launcher in (TORCHRUN, SRUN) and None not in known


def _plan_own(base: Plan, request: CheckRequest, environ: Mapping[str, str]) -> Plan:
    nnodes = request.nnodes or 1
    rdzv = request.rdzv_backend or ("c10d" if request.rdzv_endpoint else "static")
    endpoint = request.rdzv_endpoint
    if nnodes > 1 and rdzv == "static":
        _require_static(request)
    host, port = _split(endpoint) if endpoint else (request.master_addr, request.master_port)
    if nnodes == 1:
        host, port = host or "127.0.0.1", port or free_port()
    port = port or DEFAULT_PORT
    node = request.node_rank or 0
    launch = dataclasses.replace(
        base.launch,
        nnodes=nnodes,
        nproc=request.nproc if isinstance(request.nproc, int) else 0,
        node_rank=request.node_rank if nnodes > 1 else 0,
        master_addr=host,
        master_port=port,
        rdzv_backend=rdzv,
        rdzv_endpoint=f"[{host}]:{port}" if ":" in (host or "") else f"{host}:{port}",
        rdzv_id=request.rdzv_id or "ddpdoctor",
        local_addr=request.local_addr,
        backend_asked=request.backend,
        model=request.model,
        variables={k: v for k, v in allowed_variables(environ).items() if k in WORLD_VARIABLES},
    )
    placed = nnodes == 1 or request.node_rank is not None
    return dataclasses.replace(base, launch=launch, node=node, party=node, parties=nnodes, placed=placed)


def _require_static(request: CheckRequest) -> None:
    """torchrun's static rendezvous needs both; with c10d the endpoint alone is enough."""
    missing = [
        option
        for option, value in (
            ("--node-rank", request.node_rank),
            ("--master-addr", request.master_addr or request.rdzv_endpoint),
        )
        if value is None
    ]
    if missing:
        raise UsageError(
            f"{' and '.join(missing)} missing: several nodes need a rendezvous and a node rank each",
            hint=f"ddpdoctor check --nnodes {request.nnodes} --node-rank K --master-addr HOST0",
        )


def _split(endpoint: str) -> tuple[str, int | None]:
    host, separator, port = endpoint.rpartition(":")
    if not separator or endpoint.endswith("]"):
        return endpoint.strip("[]"), None
    return host.strip("[]"), int(port)


_PET: dict[str, tuple[str, type]] = {
    "PET_NNODES": ("nnodes", int),
    "PET_NPROC_PER_NODE": ("nproc", int),
    "PET_NODE_RANK": ("node_rank", int),
    "PET_MASTER_ADDR": ("master_addr", str),
    "PET_MASTER_PORT": ("master_port", int),
    "PET_RDZV_BACKEND": ("rdzv_backend", str),
    "PET_RDZV_ENDPOINT": ("rdzv_endpoint", str),
    "PET_RDZV_ID": ("rdzv_id", str),
}
"""torchrun's own variables for its options, and the fields of the request that they fill."""


def _with_pet(request: CheckRequest, environ: Mapping[str, str]) -> CheckRequest:
    changes: dict[str, Any] = {}
    for variable, (name, convert) in _PET.items():
        value = environ.get(variable)
        if not value or getattr(request, name) is not None:
            continue
        try:
            changes[name] = convert(value)
        except ValueError:
            if variable != "PET_NPROC_PER_NODE" or value not in ("auto", "cpu", "gpu"):
                raise UsageError(
                    f"{variable}={value} is not a number that check can use",
                    hint=f"unset {variable}, or pass the option explicitly",
                ) from None
            changes[name] = value
    return dataclasses.replace(request, **changes)


def complete_plan(
    plan: Plan, request: CheckRequest, local: LocalFindings, environ: Mapping[str, str] = os.environ
) -> Plan:
    """Fill in what depends on the machine: how many ranks, on which devices, over which backend, how long.

    Args:
        plan: as far as it has come.
        request: what was asked for.
        local: what was seen of the machine.
        environ: variables of the launcher.

    Raises:
        UsageError: ``--nproc gpu`` without a GPU.
    """
    launch, accelerators = plan.launch, local.accelerators
    nproc = launch.nproc or _count_ranks(request, local)
    wants_gpu = launch.backend_asked in ("nccl", "xccl")
    local_world = plan.local_world_size if plan.external else nproc
    use_gpu = (
        bool(accelerators)
        and launch.backend_asked != "gloo"
        and (
            wants_gpu
            or len(accelerators) >= local_world
            or (plan.external and _has_own_device(environ, local_world))
        )
    )
    backend = launch.backend_asked or ("nccl" if use_gpu and local.has_nccl else "gloo")
    world_size = launch.world_size if plan.external else nproc * launch.nnodes
    devices = _assign_devices(plan, accelerators, nproc) if use_gpu and backend != "gloo" else ()
    return dataclasses.replace(
        plan,
        launch=dataclasses.replace(launch, nproc=nproc, world_size=world_size, backend=backend),
        devices=devices,
        limits=_scale_limits(plan, request, local_world, local.cores),
        first_rank=plan.first_rank if plan.external else (launch.node_rank or 0) * nproc,
    )


def _has_own_device(environ: Mapping[str, str], local_world: int) -> bool:
    """Whether a launcher shows each rank of a node devices of its own, fewer than the node has.

    Slurm says so (sbatch(1), ``--gpus-per-task``); else the driver's list, which no CUDA_VISIBLE_DEVICES shortens, has
    one for each rank.
    """
    asked = environ.get("SLURM_GPUS_PER_TASK", "").rpartition(":")[2]
    return (asked.isdecimal() and int(asked) > 0) or count_nvidia_devices() >= local_world


def _count_ranks(request: CheckRequest, local: LocalFindings) -> int:
    if request.nproc == "gpu" and not local.accelerators:
        raise UsageError("--nproc gpu: torch sees no GPU here", hint="ddpdoctor check --nproc cpu")
    if request.nproc in ("auto", "gpu", None) and local.accelerators:
        return len(local.accelerators)
    if request.nproc is None:
        return DEFAULT_NPROC_CPU
    return max(1, os.cpu_count() or 1)


def _assign_devices(plan: Plan, accelerators: tuple[str, ...], nproc: int) -> tuple[str, ...]:
    if plan.external:
        # A launcher that shows each rank one GPU of its own calls it cuda:0 on all of them.
        return tuple(accelerators[i % len(accelerators)] for i in range(plan.launch.world_size))
    return tuple(accelerators[i] if i < len(accelerators) else f"cuda:{i}" for i in range(nproc))


def _scale_limits(plan: Plan, request: CheckRequest, local_world: int, cores: float) -> dict[str, float]:
    """Give crowded machines more time: limits that nobody set grow with the ranks per core."""
    factor = max(1.0, local_world / max(cores, 1.0) / RANKS_PER_CORE_FREE)
    limits = {
        stage: limit if stage in request.limits else limit * factor for stage, limit in plan.limits.items()
    }
    if request.model is not None and "ddp" not in request.limits:
        limits["ddp"] += plan.model_limit
    return limits
