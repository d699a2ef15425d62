"""The operations of the bandwidth sweep: buffers, one call, and a check of the contents.

Sizes and factors are those of nccl-tests (NVIDIA/nccl-tests, doc/PERFORMANCE.md and src/*.cu): S is the total
buffer, per-rank bytes times n for all_gather, reduce_scatter, all_to_all, gather and scatter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ddpdoctor.launch.probes.exact_values import fill_addends, fill_pattern, is_pattern, is_sum

ITEM = 4
"""Bytes of float32, the type of the sweep (the default of nccl-tests)."""

ROOT = 0


@dataclass(frozen=True, slots=True)
class Seat:
    """Who calls, and how much."""

    rank: int
    size: int
    count: int
    """Elements on this rank; of one part where S is divided."""
    device: str

    def blank(self, parts: int = 1) -> torch.Tensor:
        """Return a buffer of zeros: sums of them stay so however often they are summed, and none is right."""
        return torch.zeros(self.count * parts, dtype=torch.float32, device=self.device)


@dataclass(frozen=True, slots=True)
class Calls:
    """An operation on buffers that were made for it."""

    run: Callable[[], object]
    """Make one call; on a GPU it may only be queued when this returns."""
    fill: Callable[[], None]
    """Put values in whose results are known."""
    check: Callable[[], bool]
    """Whether one call after `fill` left what it must."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of the sweep."""

    name: str
    prepare: Callable[[Seat], Calls]
    factor: Callable[[int], float]
    """Ranks -> busbw / algbw."""
    divided: bool = False
    """S is spread over the ranks."""
    rooted: bool = False
    """Ranks do not wait for each other in it, so each timed call is preceded by a barrier."""


class Transfer:
    """One operation with buffers of one size.

    Args:
        operation: what is called.
        total: bytes S, rounded down to whole elements on each rank and up to one; see ``bytes``.
        rank: this rank.
        size: number of ranks.
        device: where the buffers live.
    """

    def __init__(self, operation: Operation, total: int, rank: int, size: int, device: str) -> None:
        parts = size if operation.divided else 1
        count = max(1, total // ITEM // parts)
        self.operation, self.size = operation, size
        self.bytes = count * ITEM * parts
        """S, as it is sent."""
        self.calls = operation.prepare(Seat(rank, size, count, device))


def _prepare_all_reduce(seat: Seat) -> Calls:
    buffer = seat.blank()
    return Calls(
        run=lambda: dist.all_reduce(buffer),
        fill=lambda: fill_addends(buffer, seat.rank, seat.size),
        check=lambda: is_sum(buffer, seat.size),
    )


def _prepare_reduce(seat: Seat) -> Calls:
    buffer = seat.blank()
    return Calls(
        run=lambda: dist.reduce(buffer, ROOT),
        fill=lambda: fill_addends(buffer, seat.rank, seat.size),
        check=lambda: seat.rank != ROOT or is_sum(buffer, seat.size),
    )


def _prepare_broadcast(seat: Seat) -> Calls:
    buffer = seat.blank()
    return Calls(
        run=lambda: dist.broadcast(buffer, ROOT),
        fill=lambda: fill_pattern(buffer, seat.rank),
        check=lambda: is_pattern(buffer, ROOT),
    )


def _prepare_all_gather(seat: Seat) -> Calls:
    part, whole = seat.blank(), seat.blank(seat.size)
    return Calls(
        run=lambda: dist.all_gather_into_tensor(whole, part),
        fill=lambda: fill_pattern(part, seat.rank),
        check=lambda: all(is_pattern(each, rank) for rank, each in enumerate(whole.chunk(seat.size))),
    )


def _prepare_reduce_scatter(seat: Seat) -> Calls:
    part, whole = seat.blank(), seat.blank(seat.size)
    return Calls(
        run=lambda: dist.reduce_scatter_tensor(part, whole),
        fill=lambda: fill_addends(whole, seat.rank, seat.size),
        check=lambda: is_sum(part, seat.size, seat.rank * seat.count),
    )


def _prepare_all_to_all(seat: Seat) -> Calls:
    sent, received = seat.blank(seat.size), seat.blank(seat.size)

    def fill() -> None:
        for target, part in enumerate(sent.chunk(seat.size)):
            fill_pattern(part, seat.rank * seat.size + target)

    def check() -> bool:
        parts = received.chunk(seat.size)
        return all(is_pattern(part, source * seat.size + seat.rank) for source, part in enumerate(parts))

    return Calls(lambda: dist.all_to_all_single(received, sent), fill, check)


def _prepare_gather(seat: Seat) -> Calls:
    part = seat.blank()
    parts = list(seat.blank(seat.size).chunk(seat.size)) if seat.rank == ROOT else None
    return Calls(
        run=lambda: dist.gather(part, parts, ROOT),
        fill=lambda: fill_pattern(part, seat.rank),
        check=lambda: all(is_pattern(each, rank) for rank, each in enumerate(parts or ())),
    )


def _prepare_scatter(seat: Seat) -> Calls:
    part = seat.blank()
    parts = list(seat.blank(seat.size).chunk(seat.size)) if seat.rank == ROOT else None

    def fill() -> None:
        for target, each in enumerate(parts or ()):
            fill_pattern(each, target)

    return Calls(lambda: dist.scatter(part, parts, ROOT), fill, lambda: is_pattern(part, seat.rank))


def _prepare_send_recv(seat: Seat) -> Calls:
    """Each rank sends to the next and receives from the one before, all at once."""
    sent, received = seat.blank(), seat.blank()
    before, after = (seat.rank - 1) % seat.size, (seat.rank + 1) % seat.size

    def run() -> None:
        batch = [dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, received, before)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()

    return Calls(run, lambda: fill_pattern(sent, seat.rank), lambda: is_pattern(received, before))


def _whole(size: int) -> float:
    return 1.0


def _shared(size: int) -> float:
    return (size - 1) / size


def _twice_shared(size: int) -> float:
    return 2 * (size - 1) / size


OPERATIONS: dict[str, Operation] = {
    each.name: each
    for each in (
        Operation("all_reduce", _prepare_all_reduce, _twice_shared),
        Operation("all_gather", _prepare_all_gather, _shared, divided=True),
        Operation("reduce_scatter", _prepare_reduce_scatter, _shared, divided=True),
        Operation("all_to_all", _prepare_all_to_all, _shared, divided=True),
        Operation("broadcast", _prepare_broadcast, _whole, rooted=True),
        Operation("reduce", _prepare_reduce, _whole, rooted=True),
        Operation("gather", _prepare_gather, _shared, divided=True, rooted=True),
        Operation("scatter", _prepare_scatter, _shared, divided=True, rooted=True),
        Operation("send_recv", _prepare_send_recv, _whole),
    )
}
"""Name -> operation; the names that ``--collectives`` takes."""
