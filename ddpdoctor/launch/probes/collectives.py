"""Every collective, tried with several types and sizes and compared exactly with what it must give.

What is tried (a *case* is an operation, a type, a size and a reduction):

* up to 16 ranks: each operation with float32, bfloat16 and int64, 1,023 elements; float32 again with
  ``async_op=True``; all_reduce, broadcast and all_gather with every type; all_reduce with every reduction;
  one element, and a message larger than the chunks that backends cut (2 MiB);
* above 16 ranks: each operation once with float32, all_reduce also with bfloat16 and int64 and with
  ``async_op=True``. Operations in which everybody sends to everybody cost n² messages, and a wrong type would
  have shown in a small world.

A large world thus takes fewer cases, never fewer operations. Above 8 ranks gloo's reduce_scatter of a list is
tried in the sub-group only, see `COSTLY_REDUCE_SCATTER`. See `ddpdoctor.launch.probes.exact_values` for the
numbers that are sent and why they are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from ddpdoctor.evidence import CollectiveCase, RankMessage, RankSet
from ddpdoctor.launch.context import RankContext
from ddpdoctor.launch.defects import pass_defect
from ddpdoctor.launch.probes.base import ProbeError, find_refusal, word_exception
from ddpdoctor.launch.probes.exact_values import allowed_error
from ddpdoctor.launch.probes.groups import leave_group
from ddpdoctor.launch.probes.operations import RUNNERS, Arena, Outcome, Spec
from ddpdoctor.launch.probes.sharing import share_machine

SMALL_WORLD = 16
"""Up to this many ranks all types are tried: at 16 ranks on 2 cores that is still under 3 s on gloo."""

COSTLY_REDUCE_SCATTER = 8
"""Ranks above which gloo's reduce_scatter of a list is left to the sub-group: ProcessGroupGloo.cpp makes of it
as many all_reduces as there are ranks. On 2 cores it took half of all collectives at 16 ranks, and two calls
48 of 56 s at 64. The same of one tensor (reduce_scatter_tensor) is one all_reduce and is tried everywhere."""

SUBGROUP_RANKS = 16
"""Most members of the sub-group; they are spread over the whole world."""

ODD_COUNT = 1023
"""Not a multiple of any vector width, chunk or world size but 3, 11, 31 and their products."""

LARGE_COUNT = 512 * 1024 + 3
"""2 MiB of float32: above gloo's segments (1 MiB, allreduce.cc) and NCCL's chunks (512 KiB)."""

POINT_TO_POINT = ("send/recv", "isend/irecv", "batch_isend_irecv")
OBJECTS = ("broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list")
REDUCING = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor")
WITHOUT_ASYNC = (*POINT_TO_POINT, *OBJECTS)
EVERY_TYPE = ("all_reduce", "broadcast", "all_gather")

_USUAL_TYPES = (torch.float32, torch.bfloat16, torch.int64)
_OTHER_TYPES = (torch.float64, torch.float16, torch.int32, torch.uint8)
_SUBGROUP_OPERATIONS = ("all_reduce", "broadcast", "all_gather")


def probe_collectives(ctx: RankContext) -> None:
    """Try every collective in the default group, and a few in a sub-group.

    Emits one `CollectiveCase` for each case, as soon as it has run.

    Raises:
        ProbeError: an operation raised something other than a refusal, so the ranks may be out of step.
    """
    together = share_machine(ctx)
    world = Arena("world", None, tuple(range(ctx.world_size)), ctx.rank, ctx.device, together)
    for spec in plan_cases(ctx.world_size, ctx.backend):
        ctx.note(f"{spec.op} {name_type(spec.dtype)}")
        _run_case(ctx, world, spec)
    if ctx.world_size > 1:
        _try_subgroup(ctx, one_host=together)


def is_left_to_subgroup(op: str, world_size: int, backend: str) -> bool:
    """Whether ``op`` would cost too much in the whole world; see `COSTLY_REDUCE_SCATTER`."""
    return op == "reduce_scatter" and backend == "gloo" and world_size > COSTLY_REDUCE_SCATTER


def plan_cases(world_size: int, backend: str) -> Iterator[Spec]:
    """Yield the cases for a world of that size, object collectives last (they are many calls in one)."""
    small = world_size <= SMALL_WORLD
    for op in RUNNERS:
        if is_left_to_subgroup(op, world_size, backend):
            continue
        if op == "barrier":
            yield Spec(op, torch.float32, 1)
        elif op not in OBJECTS:
            for dtype in _USUAL_TYPES if small or op == "all_reduce" else _USUAL_TYPES[:1]:
                yield Spec(op, dtype, ODD_COUNT)
    if small:
        for op in EVERY_TYPE:
            yield from (Spec(op, dtype, ODD_COUNT) for dtype in _OTHER_TYPES)
            yield Spec(op, torch.float32, 1)
        for op in ("broadcast", "all_gather"):
            yield Spec(op, torch.bool, ODD_COUNT)
        for reduction in ("PRODUCT", "MIN", "MAX"):
            yield Spec("all_reduce", torch.float32, ODD_COUNT, reduction)
            yield Spec("all_reduce", torch.int64, ODD_COUNT, reduction)
        yield Spec("all_reduce", torch.float32, ODD_COUNT, "AVG")
    yield from (Spec(op, torch.float32, LARGE_COUNT) for op in ("all_reduce", "broadcast"))
    yield from (Spec(op, torch.float32, 1) for op in OBJECTS)


def name_type(dtype: torch.dtype) -> str:
    """Return ``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def _run_case(ctx: RankContext, arena: Arena, spec: Spec) -> None:
    failures: list[str] = []
    refusal = _find_obstacle(arena, spec)
    problem: Exception | None = None
    if refusal is None:
        try:
            failures = _try_case(arena, spec)
        except Exception as raised:
            pass_defect(raised)
            refusal = find_refusal(raised)
            problem = None if refusal else raised
            if problem is not None:
                failures = [word_exception(problem)]
    me = RankSet([ctx.rank])
    ctx.emit(
        "collectives",
        CollectiveCase(
            op=spec.op,
            backend=ctx.backend,
            dtype="object" if spec.op in OBJECTS else name_type(spec.dtype),
            count=spec.count,
            reduction=spec.reduction if spec.op in REDUCING else None,
            group=arena.name,
            passed=me if not failures and refusal is None else RankSet(),
            failures=tuple(RankMessage(me, text) for text in failures),
            unsupported=refusal,
        ),
    )
    if problem is not None:
        raise ProbeError(f"{spec.op} of {name_type(spec.dtype)} failed: {failures[0]}") from problem


def _find_obstacle(arena: Arena, spec: Spec) -> str | None:
    """Return why a case cannot be tried at all here; the same on every rank."""
    if spec.op in POINT_TO_POINT and arena.size < 2:
        return "needs at least two ranks"
    if spec.op in OBJECTS and not _has_numpy():
        return "torch's object collectives need NumPy, which this Python does not have"
    return None


def _has_numpy() -> bool:
    """Whether tensors turn into arrays: torch.distributed unpickles objects by ``Tensor.numpy()``."""
    try:
        torch.zeros(1).numpy()
    except RuntimeError:
        return False
    return True


def _try_case(arena: Arena, spec: Spec) -> list[str]:
    """Run one case, some also with ``async_op=True``, and return what was wrong."""
    wrong = _compare_all(arena, spec, "")
    if _repeats(arena, spec):
        again = Spec(spec.op, spec.dtype, spec.count, spec.reduction, asynchronous=True)
        wrong += _compare_all(arena, again, "async_op=True: ")
    return wrong


def _repeats(arena: Arena, spec: Spec) -> bool:
    """Whether a case is tried with ``async_op=True`` as well."""
    if spec.dtype is not torch.float32 or spec.op in WITHOUT_ASYNC or spec.count > ODD_COUNT:
        return False
    return arena.size <= SMALL_WORLD or spec.op == "all_reduce"


def _compare_all(arena: Arena, spec: Spec, prefix: str) -> list[str]:
    tolerance = allowed_error(spec.reduction, arena.size, spec.dtype) if spec.op in REDUCING else 0.0
    found = [compare_outcome(outcome, tolerance) for outcome in RUNNERS[spec.op](arena, spec)]
    return [prefix + text for text in found if text is not None]


def compare_outcome(outcome: Outcome, tolerance: float = 0.0) -> str | None:
    """Return what is wrong with ``outcome``, or None if it is exactly what it must be.

    Args:
        outcome: a tensor and what it must hold, or any two objects.
        tolerance: absolute difference that is allowed; 0 compares bit by bit.
    """
    label = f"{outcome.label}: " if outcome.label else ""
    got, expected = outcome.got, outcome.expected
    if not isinstance(got, torch.Tensor):
        return None if got == expected else f"{label}expected {_shorten(expected)}, got {_shorten(got)}"
    if torch.equal(got, expected):
        return None
    # bool and uint8 have no useful difference; int64 and all floats of the patterns fit float64 exactly
    values, wanted = got.detach().to("cpu", torch.float64), expected.to("cpu", torch.float64)
    wrong = ~((values - wanted).abs() <= tolerance)
    if not bool(wrong.any()):
        return None
    index = int(wrong.nonzero()[0])
    return (
        f"{label}expected {wanted[index].item():g} at element {index}, got {values[index].item():g}"
        f" ({int(wrong.sum())} of {got.numel()} elements differ)"
    )


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:120] + "…"


def _try_subgroup(ctx: RankContext, *, one_host: bool) -> None:
    """Try a few operations in a group of some ranks; all ranks take part in making it."""
    members = choose_members(ctx.world_size)
    ctx.note(f"subgroup of {len(members)} ranks")
    try:
        group = dist.new_group(list(members), timeout=ctx.group_timeout("collectives"))
    except Exception as problem:
        pass_defect(problem)
        raise ProbeError(f"new_group of {len(members)} ranks failed: {word_exception(problem)}") from problem
    if ctx.rank not in members:
        return
    arena = Arena("sub-group", group, members, members.index(ctx.rank), ctx.device, one_host)
    costly = [op for op in RUNNERS if is_left_to_subgroup(op, ctx.world_size, ctx.backend)]
    for op in (*_SUBGROUP_OPERATIONS, *costly):
        _run_case(ctx, arena, Spec(op, torch.float32, ODD_COUNT))
    leave_group(group)


def choose_members(world_size: int) -> tuple[int, ...]:
    """Return the ranks of the sub-group: the even ones, or every third, fourth … where they are too many."""
    return tuple(range(0, world_size, max(2, -(-world_size // SUBGROUP_RANKS))))
