"""What rank 0 saves is what all ranks load."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ddpdoctor.launch.context import RankContext
from ddpdoctor.launch.probes.fingerprints import fingerprint_all
from ddpdoctor.launch.probes.sharing import find_common_directory
from ddpdoctor.launch.probes.trials import Bench, Verdict

FILE = "checkpoint.pt"


def try_checkpoint(bench: Bench) -> Verdict:
    """Rank 0 saves model and optimizer; after a barrier all load onto their own device and compare.

    Compared bit for bit with fingerprints that rank 0 took before it saved and broadcast. Where the ranks find no
    directory in common the bytes of the file are broadcast.
    """
    ctx = bench.ctx
    state = {"model": bench.trained.module.state_dict(), "optimizer": bench.optimizer.state_dict()}
    tensors = dict(list_tensors(state))
    marks = fingerprint_all([value.to(ctx.device) for value in tensors.values()])
    dist.broadcast(marks, 0)
    folder = find_common_directory(ctx)
    loaded = _pass_by_broadcast(ctx, state) if folder is None else _pass_by_file(ctx, folder / FILE, state)
    verdict = Verdict(facts={"tensors": len(tensors), "by": "broadcast" if folder is None else "file"})
    restored = dict(list_tensors(loaded))
    if list(restored) != list(tensors):
        verdict.blame(f"loaded {sorted(restored)}, saved were {sorted(tensors)}")
        return verdict
    for (name, value), mark in zip(restored.items(), marks.tolist(), strict=True):
        if fingerprint_all([value])[0].item() != mark:
            difference = (value.double() - tensors[name].to(value.device).double()).abs().max().item()
            verdict.blame(f"{name} differs from what rank 0 saved", name, difference)
        elif value.device != torch.device(ctx.device):
            verdict.blame(f"{name} was loaded onto {value.device} instead of {ctx.device}", name)
    return verdict


def list_tensors(state: Any, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of nested dicts and lists with dotted names."""
    if isinstance(state, torch.Tensor):
        yield prefix, state
    elif isinstance(state, dict):
        for key, value in state.items():
            yield from list_tensors(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(state, (list, tuple)):
        for index, value in enumerate(state):
            yield from list_tensors(value, f"{prefix}.{index}")


def _pass_by_file(ctx: RankContext, path: Path, state: dict[str, Any]) -> Any:
    if ctx.rank == 0:
        part = path.with_suffix(".part")
        torch.save(state, part)
        os.replace(part, path)
    dist.barrier()
    loaded = torch.load(path, map_location=ctx.device, weights_only=True)
    dist.barrier()
    if ctx.rank == 0:
        path.unlink()
    return loaded


def _pass_by_broadcast(ctx: RankContext, state: dict[str, Any]) -> Any:
    buffer = io.BytesIO()
    if ctx.rank == 0:
        torch.save(state, buffer)
    length = torch.tensor([buffer.tell()], dtype=torch.int64, device=ctx.device)
    dist.broadcast(length, 0)
    if ctx.rank == 0:
        content = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8).to(ctx.device)
    else:
        content = torch.empty(int(length.item()), dtype=torch.uint8, device=ctx.device)
    dist.broadcast(content, 0)
    received = io.BytesIO(bytes(content.cpu().tolist()))
    return torch.load(received, map_location=ctx.device, weights_only=True)
