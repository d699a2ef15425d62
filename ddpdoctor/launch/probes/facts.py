"""What a rank knows of itself: versions, device, threads, allowed variables."""

from __future__ import annotations

import os
import platform

import torch

from ddpdoctor.evidence import RankFacts, RankSet
from ddpdoctor.gather.variables import allowed_variables
from ddpdoctor.launch.context import RankContext


def rank_facts(ctx: RankContext) -> RankFacts:
    """Return the facts of this rank; needs no process group and touches no device's memory."""
    return RankFacts(
        rank=ctx.rank,
        local_rank=ctx.local_rank,
        node=ctx.node,
        host=ctx.host,
        pid=os.getpid(),
        world_size=ctx.world_size,
        variables=allowed_variables(os.environ),
        device=ctx.device,
        device_uuid=read_uuid(ctx.device),
        visible_devices=torch.cuda.device_count() if torch.cuda.is_available() else 0,
        threads=torch.get_num_threads(),
        versions=read_versions(),
        arch_list=tuple(torch.cuda.get_arch_list()) if torch.cuda.is_available() else (),
        cores=RankSet(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else RankSet(),
    )


def read_versions() -> dict[str, str]:
    """Return versions of python and torch, and of cuda, rocm and nccl where this torch has them."""
    found = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "rocm": getattr(torch.version, "hip", None),
        "nccl": read_nccl_version(),
    }
    return {name: version for name, version in found.items() if version}


def read_nccl_version() -> str | None:
    """Return the version of NCCL (of RCCL on ROCm) that torch has, e.g. ``2.27.5``, or None."""
    if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        return None
    try:
        version = torch.cuda.nccl.version()
    except (RuntimeError, AttributeError, ImportError):
        return None  # NCCL is built in, but its library cannot be loaded; BKD006 sees that elsewhere
    return ".".join(str(part) for part in version) if isinstance(version, tuple) else str(version)


def read_uuid(device: str) -> str | None:
    """Return ``GPU-…``, the identity of a GPU over containers and renumbering; None for other devices.

    ``uuid`` is in the properties since torch 2.4, so it is asked for by attribute.
    """
    if not device.startswith("cuda") or not torch.cuda.is_available():
        return None
    try:
        uuid = getattr(torch.cuda.get_device_properties(torch.device(device)), "uuid", None)
    except (RuntimeError, AssertionError):
        return None  # no such device: BKD004 sees that by visible_devices
    if uuid is None:
        return None
    return str(uuid) if str(uuid).startswith("GPU-") else f"GPU-{uuid}"
