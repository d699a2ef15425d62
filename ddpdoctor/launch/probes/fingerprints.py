"""Comparing tensors over ranks by a number each, bit for bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
import torch.distributed as dist


def fingerprint(tensor: torch.Tensor) -> torch.Tensor:
    """Return one int64 that changes whenever any single byte of ``tensor`` does.

    A sum of bytes times odd numbers modulo 2**64: one changed byte changes the sum by an odd multiple of a
    number below 256, which is never 0; several changes cancel with a chance of about 2**-64.
    """
    content = tensor.detach().contiguous().reshape(-1).view(torch.uint8).to(torch.int64)
    factors = torch.arange(content.numel(), dtype=torch.int64, device=content.device)
    factors = factors * 6364136223846793005 + 1442695040888963407  # Knuth's MMIX generator: well-mixed bits
    return (content * (factors | 1)).sum() + content.numel()


def fingerprint_all(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the fingerprints of ``tensors``, shape (len(tensors),), int64."""
    return torch.stack([fingerprint(tensor) for tensor in tensors])


def gather_rows(row: torch.Tensor) -> torch.Tensor:
    """Return everybody's ``row`` stacked, first dimension the rank; on the CPU."""
    rows = [torch.empty_like(row) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, row)
    return torch.stack(rows).cpu()


def find_majority(values: Sequence[int]) -> int | None:
    """Return the value that more than half of the ranks hold, or None: with two ranks it cannot be told."""
    value, count = Counter(values).most_common(1)[0]
    return value if 2 * count > len(values) else None


def word_difference(values: Sequence[int], rank: int, what: str) -> str | None:
    """Return what to say of ``what`` on this rank, or None if it holds what most ranks hold."""
    majority = find_majority(values)
    if majority is None:
        return (
            f"{what} has {len(set(values))} different values across {len(values)} ranks, without a majority"
        )
    return None if values[rank] == majority else f"{what} differs from most ranks"
