"""Whether all ranks built the same model, told before DistributedDataParallel would hang or raise on it."""

from __future__ import annotations

import hashlib

import torch.distributed as dist
from torch import nn

MOST_BYTES = 1 << 20
"""Longest list of parameters that is compared one by one; above that only counts are, so that a rank of a huge
model does not send megabytes."""


def find_difference(model: nn.Module) -> str | None:
    """Return how this rank's trainable parameters differ from rank 0's, or None. A collective call.

    DDP reduces them in order, so what must agree is their number, shapes and types (``verify_params_across_processes``
    in torch/distributed/utils.py).
    """
    rows = describe_parameters(model)
    digests: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(digests, _digest(rows))
    if len(set(digests)) == 1:
        return None
    kept = rows if sum(map(len, rows)) <= MOST_BYTES else []
    sent: list[tuple[int, list[str]]] = [(len(rows), kept)]
    dist.broadcast_object_list(sent, src=0)
    if digests[dist.get_rank()] == digests[0]:
        return None
    return word_difference(rows, *sent[0])


def describe_parameters(model: nn.Module) -> list[str]:
    """Return one line for each trainable parameter: name, shape, type."""
    return [
        f"{name} {'x'.join(map(str, each.shape)) or 'scalar'} {str(each.dtype).removeprefix('torch.')}"
        for name, each in model.named_parameters()
        if each.requires_grad
    ]


def word_difference(rows: list[str], count: int, others: list[str]) -> str:
    """Return the end of a sentence that tells a rank's parameters from rank 0's.

    Args:
        rows: this rank's.
        count: number of rank 0's.
        others: rank 0's; empty where they were too many to send.
    """
    for mine, other in zip(rows, others, strict=False):
        if _without_name(mine) != _without_name(other):
            return f"{mine} here, {other} on rank 0"
    if len(rows) != count:
        return f"{len(rows)} trainable parameters here, {count} on rank 0"
    return "different shapes or dtypes than on rank 0"


def _digest(rows: list[str]) -> str:
    return hashlib.sha256("\n".join(map(_without_name, rows)).encode()).hexdigest()


def _without_name(row: str) -> str:
    return row.partition(" ")[2]
