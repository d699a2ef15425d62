"""Inputs whose results are known beforehand and exact in every type, whatever the order of summation.

All sequences repeat every `PERIOD` elements; the period is prime, so that no chunk or segment of a power of
two lines up with it and a chunk that lands in the wrong place shows. Within that period:

* *patterns* (operations that move data, MIN and MAX) are integers from 0 to 112, which int8, uint8, float16
  and bfloat16 hold exactly; at any index the patterns of 113 successive ranks all differ.
* *addends* (SUM, AVG) are integers from 1 to 7, and at each index at most `CONTRIBUTORS` ranks have one, the
  others have 0. Every partial sum is then an integer of at most 112, exact in bfloat16 (8 significant bits,
  integers to 256) and in uint8 and int8, for any number of ranks. Up to 16 ranks all contribute everywhere;
  beyond, rank r contributes where index + r is a multiple of ceil(ranks / 16), so each rank is seen as long
  as there are as many elements as that stride (64 at 1,024 ranks).
* *factors* (PRODUCT) are 1, 2 or 3: at most five ranks have a 2 and one a 3, so that products stay at or
  below 96.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.distributed as dist

PERIOD = 1021
CONTRIBUTORS = 16
TWOS = 5


def make_pattern(rank: int, count: int, dtype: torch.dtype, device: str = "cpu") -> torch.Tensor:
    """Return the ``count`` values that ``rank`` sends in an operation that moves data."""
    base = _pattern(rank)
    return _tile(base % 2 == 1 if dtype is torch.bool else base, count, dtype, device)


def make_input(
    reduction: str, rank: int, size: int, count: int, dtype: torch.dtype, device: str = "cpu"
) -> torch.Tensor:
    """Return what ``rank`` of ``size`` puts into a reduction (SUM, AVG, PRODUCT, MIN or MAX)."""
    return _tile(_MAKERS[reduction](rank, size), count, dtype, device)


def make_result(
    reduction: str, size: int, count: int, dtype: torch.dtype, device: str = "cpu"
) -> torch.Tensor:
    """Return what a reduction over ``size`` ranks must give.

    AVG is the exact sum divided once, in float64; see `allowed_error` for what an implementation may differ.
    """
    return _tile(_reduce(reduction, size), count, dtype, device)


def allowed_error(reduction: str, size: int, dtype: torch.dtype) -> float:
    """Return the largest absolute error that a right implementation may show; 0 where it must be exact.

    Only AVG is not exact: NCCL multiplies each addend by 1/n before it sums. With n a power of two that is
    exact as well. Else each of the at most 16 products and 16 sums rounds once, relative error at most
    eps / 2 of a value below 7 (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2).
    """
    if reduction != "AVG" or size & (size - 1) == 0:
        return 0.0
    return 2 * CONTRIBUTORS * 7 * torch.finfo(dtype).eps / 2


def get_reduction(name: str) -> dist.ReduceOp.RedOpType:
    """Return torch's reduction of that name."""
    found: dist.ReduceOp.RedOpType = getattr(dist.ReduceOp, name)
    return found


@functools.cache
def _index() -> torch.Tensor:
    return torch.arange(PERIOD, dtype=torch.int64)


@functools.lru_cache(maxsize=4096)
def _pattern(rank: int) -> torch.Tensor:
    return (rank * 31 + _index() * 7 + _index() // 113 + 1) % 113


@functools.lru_cache(maxsize=2048)
def _addend(rank: int, size: int) -> torch.Tensor:
    index = _index()
    stride = -(-size // CONTRIBUTORS)
    values = (rank * 3 + index + index // 7) % 7 + 1
    return values * ((index + rank) % stride == 0)


@functools.lru_cache(maxsize=2048)
def _factor(rank: int, size: int) -> torch.Tensor:
    index = _index()
    stride = -(-size // TWOS)
    twos = torch.where(index % stride == rank % stride, 2, 1)
    return twos * torch.where(index % size == rank, 3, 1)


_MAKERS: dict[str, Callable[[int, int], torch.Tensor]] = {
    "SUM": _addend,
    "AVG": _addend,
    "PRODUCT": _factor,
    "MIN": lambda rank, size: _pattern(rank),
    "MAX": lambda rank, size: _pattern(rank),
}


@functools.lru_cache(maxsize=64)
def _reduce(reduction: str, size: int) -> torch.Tensor:
    inputs = torch.stack([_MAKERS[reduction](rank, size) for rank in range(size)])
    if reduction == "SUM":
        return inputs.sum(0)
    if reduction == "AVG":
        return inputs.sum(0).to(torch.float64) / size
    if reduction == "PRODUCT":
        return inputs.prod(0)
    return inputs.amin(0) if reduction == "MIN" else inputs.amax(0)


def fill_pattern(buffer: torch.Tensor, rank: int) -> None:
    """Fill a one-dimensional ``buffer`` with the pattern of ``rank``, at the speed of memory."""
    _fill(buffer, _pattern(rank))


def fill_addends(buffer: torch.Tensor, rank: int, size: int) -> None:
    """Fill ``buffer`` with what ``rank`` of ``size`` puts into a sum."""
    _fill(buffer, _addend(rank, size))


def is_pattern(buffer: torch.Tensor, rank: int) -> bool:
    """Whether ``buffer`` holds the pattern of ``rank``."""
    return _matches(buffer, _pattern(rank))


def is_sum(buffer: torch.Tensor, size: int, start: int = 0) -> bool:
    """Whether ``buffer`` holds the sum over ``size`` ranks from its element ``start`` on."""
    return _matches(buffer, _reduce("SUM", size).roll(-(start % PERIOD)))


def _fill(buffer: torch.Tensor, base: torch.Tensor) -> None:
    period = base.to(device=buffer.device, dtype=buffer.dtype)
    whole, rest = divmod(buffer.numel(), PERIOD)
    if whole:
        buffer[: whole * PERIOD].view(whole, PERIOD).copy_(period)
    buffer[whole * PERIOD :].copy_(period[:rest])


def _matches(buffer: torch.Tensor, base: torch.Tensor) -> bool:
    period = base.to(device=buffer.device, dtype=buffer.dtype)
    whole, rest = divmod(buffer.numel(), PERIOD)
    if whole and not bool((buffer[: whole * PERIOD].view(whole, PERIOD) == period).all()):
        return False
    return torch.equal(buffer[whole * PERIOD :], period[:rest])


def _tile(base: torch.Tensor, count: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    made = torch.empty(count, dtype=dtype, device=device)
    _fill(made, base)
    return made
