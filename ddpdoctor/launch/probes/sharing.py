"""What the ranks have in common, as they find out together: one machine and its clock, and one directory.

Counts of ranks show neither. Under torchrun, srun and mpirun each rank has a temporary directory of its own,
containers on one machine hide theirs from each other, and ranks that were started by hand have no counts.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

import torch
import torch.distributed as dist

from ddpdoctor.gather import machine
from ddpdoctor.launch.context import RankContext
from ddpdoctor.launch.probes.base import agree_on_all

MARK = "common-"
"""Start of the name of the file that rank 0 leaves for the others to find."""


def share_machine(ctx: RankContext) -> bool:
    """Whether all ranks are on one machine, with one network and one monotonic clock. A collective call."""
    mine = _identify_machine()
    first = _broadcast_text(ctx, mine or "")
    return agree_on_all([mine is not None and mine == first], ctx.device)[0]


def find_common_directory(ctx: RankContext) -> Path | None:
    """Return a private directory in which every rank has seen a file of rank 0; None without one.

    It must be on one machine as well: file systems between machines may lack the locks of file:// initialization.
    A collective call.
    """
    mark = Path(ctx.plan.workdir).resolve() / f"{MARK}{secrets.token_hex(8)}"
    if ctx.rank == 0:
        with contextlib.suppress(OSError):
            mark.touch(mode=0o600)
    found = Path(_broadcast_text(ctx, str(mark)))
    together = share_machine(ctx)
    seen = agree_on_all(
        [together and os.path.isfile(found) and os.access(found.parent, os.W_OK)], ctx.device
    )[0]
    if ctx.rank == 0:
        mark.unlink(missing_ok=True)
    return found.parent if seen else None


def _identify_machine() -> str | None:
    """Return what processes with one kernel, one network and one monotonic clock (time namespaces(7)) have alike."""
    boot = machine.boot_id()
    if boot is None:
        return None
    try:
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return boot


def _broadcast_text(ctx: RankContext, text: str) -> str:
    """Return rank 0's text; by tensors, since torch's object collectives need NumPy."""
    data = bytearray(os.fsencode(text)) if ctx.rank == 0 else bytearray()
    length = torch.tensor([len(data)], dtype=torch.int64, device=ctx.device)
    dist.broadcast(length, 0)
    size = int(length.item())
    content = torch.tensor(list(data) if ctx.rank == 0 else [0] * size, dtype=torch.uint8, device=ctx.device)
    if size:
        dist.broadcast(content, 0)
    return os.fsdecode(bytes(content.tolist()))
