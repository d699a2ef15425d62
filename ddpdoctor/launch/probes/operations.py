"""The collectives: how each is called and what it must give.

Each operation is a generator: it makes the call and yields what came out beside what must come out. Roots,
peers and neighbours are ranks of the group; torch's ``src`` and ``dst`` want global ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ddpdoctor.launch.probes.exact_values import get_reduction, make_input, make_pattern, make_result


@dataclass(frozen=True, slots=True)
class Arena:
    """A process group as one of its members sees it."""

    name: str
    """world or sub-group."""
    group: Any
    """What torch takes as ``group``; None is the default group."""
    ranks: tuple[int, ...]
    """Global ranks in the order of the group."""
    rank: int
    """Rank within the group."""
    device: str
    one_host: bool
    """All members share one monotonic clock."""

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.ranks)

    @property
    def last(self) -> int:
        """Group rank of the last member."""
        return self.size - 1

    def choose_roots(self, spec: Spec) -> tuple[int, ...]:
        """Return the group ranks to try as root: the last, in plain float32 cases the first too.

        The root is no matter of types; a backend that ignores it takes rank 0, which the last one shows.
        """
        both = spec.dtype is torch.float32 and not spec.asynchronous and self.size > 1
        return (0, self.last) if both else (self.last,)


@dataclass(frozen=True, slots=True)
class Spec:
    """What one case asks of an operation."""

    op: str
    dtype: torch.dtype
    count: int
    reduction: str = "SUM"
    asynchronous: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out and what must come out."""

    got: Any
    expected: Any
    label: str = ""


Runner = Callable[[Arena, Spec], Iterator[Outcome]]


def _call(spec: Spec, function: Callable[..., Any], *args: Any, **options: Any) -> None:
    work = function(*args, async_op=spec.asynchronous, **options)
    if spec.asynchronous and work is not None:
        work.wait()


def _pattern(arena: Arena, spec: Spec, rank: int, count: int | None = None) -> torch.Tensor:
    return make_pattern(rank, spec.count if count is None else count, spec.dtype, arena.device)


def _input(arena: Arena, spec: Spec, count: int) -> torch.Tensor:
    return make_input(spec.reduction, arena.rank, arena.size, count, spec.dtype, arena.device)


def _result(arena: Arena, spec: Spec, count: int) -> torch.Tensor:
    return make_result(spec.reduction, arena.size, count, spec.dtype, arena.device)


def _blank(arena: Arena, spec: Spec, count: int | None = None) -> torch.Tensor:
    """Return a buffer of ones: no result is all ones, and unlike empty memory it is never right by luck."""
    return torch.ones(spec.count if count is None else count, dtype=spec.dtype, device=arena.device)


def run_all_reduce(arena: Arena, spec: Spec) -> Iterator[Outcome]:
    """Reduce over all, result on all."""
    buffer = _input(arena, spec, spec.count)
    _call(spec, dist.all_reduce, buffer, op=get_reduction(spec.reduction), group=arena.group)
    yield Outcome(buffer, _result(arena, spec, spec.count))


def run_reduce(arena: Arena, spec: Spec) -> Iterator[Outcome]:
    """Reduce over all, result on a root; what the others hold afterwards is not defined."""
    for root in arena.choose_roots(spec):
        buffer = _input(arena, spec, spec.count)
        operator = get_reduction(spec.reduction)
        _call(spec, dist.reduce, buffer, dst=arena.ranks[root], op=operator, group=arena.group)
        if arena.rank == root:
            yield Outcome(buffer, _result(arena, spec, spec.count), f"to rank {arena.ranks[root]}")


def run_broadcast(arena: Arena, spec: Spec) -> Iterator[Outcome]:
    """One root's values on all."""
    for root in arena.choose_roots(spec):
        buffer = _pattern(arena, spec, arena.rank)
        _call(spec, dist.broadcast, buffer, src=arena.ranks[root], group=arena.group)
        yield Outcome(buffer, _pattern(arena, spec, root), f"from rank {arena.ranks[root]}")


def run_scatter(arena: Arena, spec: Spec) -> Iterator[Outcome]:
    """One part of a root's list to each."""
    for root in arena.choose_roots(spec):
        parts = [_pattern(arena, spec, root + 7 * to) for to in range(arena.size)]
        buffer = _blank(arena, spec)
        mine = parts if arena.rank == root else None
        _call(spec, dist.scatter, buffer, mine, src=arena.ranks[root], group=arena.group)
        yield Outcome(buffer, parts[arena.rank], f"from rank {arena.ranks[root]}")


def run_gather(arena: Arena, spec: Spec) -> Iterator[Outcome]:
    """Everybody's values in a list on a root."""
    for root in arena.choose_roots(spec):
        parts = [_blank(arena, spec) for _ in arena.ranks] if arena.rank == root else None
        mine = _pattern(arena, spec, arena.rank)
        _call(spec, dist.gather, mine, parts, dst=arena.ranks[root], group=arena.group)
        for source, part in enumerate(parts or ()):
            yield Outcome(part, _pattern(arena, spec, source), f"part of rank {arena.ranks[source]}")


def run_all_gather(arena: Arena, spec: Spec) -> Iterator[Outcome]:
    """Everybody's values in a list on all."""
    parts = [_blank(arena, spec) for _ in arena.ranks]
    _call(spec, dist.all_gather, parts, _pattern(arena, spec, arena.rank), group=arena.group)
    for source, part in enumerate(parts):
        yield Outcome(part, _pattern(arena, spec, source), f"part of rank {arena.ranks[source]}")


def run_all_gather_into_tensor(arena: Arena, spec: Spec) -> Iterator[Outcome]:
    """Everybody's values in one tensor on all."""
    whole = _blank(arena, spec, arena.size * spec.count)
    mine = _pattern(arena, spec, arena.rank)
    _call(spec, dist.all_gather_into_tensor, whole, mine, group=arena.group)
    yield Outcome(whole, torch.cat([_pattern(arena, spec, source) for source in range(arena.size)]))


def run_reduce_scatter(arena: Arena, spec: Spec) -> Iterator[Outcome]:
    """Reduce over all, one part of the result to each; input as a list."""
    whole = _input(arena, spec, arena.size * spec.count)
    buffer, parts = _blank(arena, spec), list(whole.chunk(arena.size))
    operator = get_reduction(spec.reduction)
    _call(spec, dist.reduce_scatter, buffer, parts, op=operator, group=arena.group)
    yield Outcome(buffer, _my_part(arena, spec))


def run_reduce_scatter_tensor(arena: Arena, spec: Spec) -> Iterator[Outcome]:
    """Reduce over all, one part of the result to each; input as one tensor."""
    whole = _input(arena, spec, arena.size * spec.count)
    buffer, operator = _blank(arena, spec), get_reduction(spec.reduction)
    _call(spec, dist.reduce_scatter_tensor, buffer, whole, op=operator, group=arena.group)
    yield Outcome(buffer, _my_part(arena, spec))


def _my_part(arena: Arena, spec: Spec) -> torch.Tensor:
    result = _result(arena, spec, arena.size * spec.count)
    return result[arena.rank * spec.count : (arena.rank + 1) * spec.count]


def _letter(arena: Arena, spec: Spec, source: int, target: int, count: int | None = None) -> torch.Tensor:
    """Return what ``source`` sends to ``target`` in an all_to_all."""
    return _pattern(arena, spec, source * arena.size + target, count)


def run_all_to_all(arena: Arena, spec: Spec) -> Iterator[Outcome]:
    """Send from each rank to each rank, as lists of tensors."""
    everyone = range(arena.size)
    received = [_blank(arena, spec) for _ in everyone]
    sent = [_letter(arena, spec, arena.rank, to) for to in everyone]
    _call(spec, dist.all_to_all, received, sent, group=arena.group)
    for source in everyone:
        expected = _letter(arena, spec, source, arena.rank)
        yield Outcome(received[source], expected, f"part of rank {arena.ranks[source]}")


def run_all_to_all_single(arena: Arena, spec: Spec) -> Iterator[Outcome]:
    """Send from each rank to each rank in one tensor, in parts of unequal length."""
    everyone = range(arena.size)

    def length(source: int, target: int) -> int:
        return spec.count // 3 * ((source + target) % 3) + 1

    sizes_out = [length(arena.rank, to) for to in everyone]
    sizes_in = [length(source, arena.rank) for source in everyone]
    sent = torch.cat([_letter(arena, spec, arena.rank, to, sizes_out[to]) for to in everyone])
    received = _blank(arena, spec, sum(sizes_in))
    _call(spec, dist.all_to_all_single, received, sent, sizes_in, sizes_out, group=arena.group)
    yield Outcome(received, torch.cat([_letter(arena, spec, s, arena.rank, sizes_in[s]) for s in everyone]))


def run_barrier(arena: Arena, spec: Spec) -> Iterator[Outcome]:
    """Nobody leaves before all have come; the clocks say so where the ranks share one."""
    entered = time.monotonic()
    _call(spec, dist.barrier, group=arena.group)
    times = torch.tensor([entered, time.monotonic()], dtype=torch.float64, device=arena.device)
    parts = [torch.empty_like(times) for _ in arena.ranks]
    dist.all_gather(parts, times, group=arena.group)
    if arena.one_host:
        table = torch.stack(parts).cpu()
        yield Outcome(bool(table[:, 1].min() >= table[:, 0].max()), True, "all ranks arrived before one left")


def run_send_recv(arena: Arena, spec: Spec) -> Iterator[Outcome]:
    """Blocking, both ways between neighbours; the lower rank sends first, so that nobody waits in a ring."""
    for first in (0, 1):
        partner = arena.rank + 1 if (arena.rank - first) % 2 == 0 else arena.rank - 1
        if not first <= partner < arena.size or arena.rank < first:
            continue
        buffer, peer = _blank(arena, spec), arena.ranks[partner]
        if arena.rank < partner:
            dist.send(_pattern(arena, spec, arena.rank), peer, group=arena.group)
            dist.recv(buffer, peer, group=arena.group)
        else:
            dist.recv(buffer, peer, group=arena.group)
            dist.send(_pattern(arena, spec, arena.rank), peer, group=arena.group)
        yield Outcome(buffer, _pattern(arena, spec, partner), f"from rank {peer}")


def run_isend_irecv(arena: Arena, spec: Spec) -> Iterator[Outcome]:
    """Non-blocking, around the ring; even ranks post their send first and odd ones their receive.

    NCCL runs the calls between two ranks one after the other: were all to receive first, two would wait.
    """
    before, after = (arena.rank - 1) % arena.size, (arena.rank + 1) % arena.size
    buffer, sent = _blank(arena, spec), _pattern(arena, spec, arena.rank)
    posts: list[Callable[[], Any]] = [
        lambda: dist.isend(sent, arena.ranks[after], group=arena.group),
        lambda: dist.irecv(buffer, arena.ranks[before], group=arena.group),
    ]
    works = [post() for post in (posts if arena.rank % 2 == 0 else reversed(posts))]
    for work in works:
        if work is not None:
            work.wait()
    yield Outcome(buffer, _pattern(arena, spec, before), f"from rank {arena.ranks[before]}")


def run_batch_isend_irecv(arena: Arena, spec: Spec) -> Iterator[Outcome]:
    """A batch, around the ring in both directions; with two ranks the order in the batch pairs them."""
    before, after = (arena.rank - 1) % arena.size, (arena.rank + 1) % arena.size
    up, down = _blank(arena, spec), _blank(arena, spec)
    up_sent, down_sent = _pattern(arena, spec, arena.rank), _pattern(arena, spec, arena.rank + arena.size)
    batch = [
        dist.P2POp(dist.isend, up_sent, arena.ranks[after], group=arena.group),
        dist.P2POp(dist.irecv, up, arena.ranks[before], group=arena.group),
        dist.P2POp(dist.isend, down_sent, arena.ranks[before], group=arena.group),
        dist.P2POp(dist.irecv, down, arena.ranks[after], group=arena.group),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    yield Outcome(up, _pattern(arena, spec, before), f"from rank {arena.ranks[before]}")
    yield Outcome(down, _pattern(arena, spec, after + arena.size), f"from rank {arena.ranks[after]}")


def _parcel(rank: int) -> dict[str, Any]:
    """Return an object whose pickle has another length on each rank."""
    return {"rank": rank, "text": "é" * (rank % 50), "nested": [rank, None, 0.5]}


def run_broadcast_object_list(arena: Arena, spec: Spec) -> Iterator[Outcome]:
    """One root's objects on all."""
    root = arena.last
    objects = [_parcel(arena.rank), arena.rank]
    dist.broadcast_object_list(objects, src=arena.ranks[root], group=arena.group)
    yield Outcome(objects, [_parcel(root), root])


def run_all_gather_object(arena: Arena, spec: Spec) -> Iterator[Outcome]:
    """Everybody's object on all."""
    objects: list[Any] = [None] * arena.size
    dist.all_gather_object(objects, _parcel(arena.rank), group=arena.group)
    yield Outcome(objects, [_parcel(rank) for rank in range(arena.size)])


def run_gather_object(arena: Arena, spec: Spec) -> Iterator[Outcome]:
    """Everybody's object on a root."""
    root = arena.last
    objects: list[Any] | None = [None] * arena.size if arena.rank == root else None
    dist.gather_object(_parcel(arena.rank), objects, dst=arena.ranks[root], group=arena.group)
    if objects is not None:
        yield Outcome(objects, [_parcel(rank) for rank in range(arena.size)])


def run_scatter_object_list(arena: Arena, spec: Spec) -> Iterator[Outcome]:
    """One of a root's objects to each."""
    root = arena.last
    received: list[Any] = [None]
    parts = [_parcel(rank) for rank in range(arena.size)] if arena.rank == root else None
    dist.scatter_object_list(received, parts, src=arena.ranks[root], group=arena.group)
    yield Outcome(received, [_parcel(arena.rank)])


RUNNERS: dict[str, Runner] = {
    "send/recv": run_send_recv,
    "isend/irecv": run_isend_irecv,
    "batch_isend_irecv": run_batch_isend_irecv,
    "broadcast": run_broadcast,
    "scatter": run_scatter,
    "gather": run_gather,
    "reduce": run_reduce,
    "all_reduce": run_all_reduce,
    "all_gather": run_all_gather,
    "all_gather_into_tensor": run_all_gather_into_tensor,
    "reduce_scatter": run_reduce_scatter,
    "reduce_scatter_tensor": run_reduce_scatter_tensor,
    "all_to_all": run_all_to_all,
    "all_to_all_single": run_all_to_all_single,
    "barrier": run_barrier,
    "broadcast_object_list": run_broadcast_object_list,
    "all_gather_object": run_all_gather_object,
    "gather_object": run_gather_object,
    "scatter_object_list": run_scatter_object_list,
}
"""Every operation that is tried, by the name that evidence uses."""
