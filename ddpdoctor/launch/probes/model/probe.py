"""The user's own model: which parameters take part, what DDP makes of it, and what the search costs.

The loss is the output where that is one number, ``output.loss`` or ``output["loss"]`` where there is one (as in
Hugging Face's models), else the sum of all floating-point tensors in the output.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ddpdoctor.evidence import ModelResult, RankSet, UnusedParameter, UserError
from ddpdoctor.launch.context import RankContext
from ddpdoctor.launch.probes.bandwidth.sweep import agree_on_slowest
from ddpdoctor.launch.probes.base import ProbeError, preserved_random_state, synchronize
from ddpdoctor.launch.probes.deferral import deferred_compiler
from ddpdoctor.launch.probes.model.factory import (
    FactoryError,
    Product,
    call_factory,
    describe_error,
    load_factory,
    raising_as,
)
from ddpdoctor.launch.probes.model.sameness import find_difference
from ddpdoctor.launch.probes.toy import wrap
from ddpdoctor.launch.probes.trials import Fact, read_logging_data
from ddpdoctor.launch.probes.usage import list_unused, watched

STEPS = 3
"""Steps in which the model is watched, and steps that are timed: the fewest that have a median."""

SLOW_SHARE = 1 / 40
"""A step that takes more of ``plan.model_limit`` than this is not repeated: there are up to 3 + 4 + 4 steps."""


@dataclass
class _Seen:
    """What has been found so far; becomes the row whatever happens."""

    parameters: int = 0
    parameter_bytes: int = 0
    trainable: int = 0
    unused: dict[str, UnusedParameter] = field(default_factory=dict)
    used_sets: list[frozenset[str]] = field(default_factory=list)
    step_s: float | None = None
    step_s_with_search: float | None = None
    facts: dict[str, Fact] = field(default_factory=dict)
    error: UserError | None = None
    in_ddp: bool = False
    """A step is under way in which ranks communicate."""


def probe_model(ctx: RankContext) -> None:
    """Examine the model that ``--model`` names, if it does, and emit one `ModelResult`.

    Errors of the user's code are evidence and not raised; a hang in it is the supervisor's to cut (notes tell
    where it is). Ranks agree after each phase, so that none waits in a collective for one that failed.

    Raises:
        ProbeError: a step in DDP failed after it may have begun to communicate: the ranks may be out of step.
    """
    reference = ctx.plan.launch.model
    if reference is None:
        return
    seen = _Seen()
    try:
        with preserved_random_state():
            _examine(ctx, reference, seen)
    finally:
        ctx.enter(None)
        gc.collect()  # no DDP object may outlive its process group
        ctx.emit("model", _describe(ctx, reference, seen))
    if seen.error is not None and (seen.in_ddp or not dist.is_initialized()):
        where = "a step" if seen.in_ddp else "the factory"
        raise ProbeError(f"{where} of {reference} in DDP failed: {seen.error.message}")


class _PeerFailedError(Exception):
    """Another rank's model failed; it has the error."""


def _examine(ctx: RankContext, reference: str, seen: _Seen) -> None:
    factory: Callable[[], Any] | None = None
    try:
        ctx.note(f"model: importing {reference}")
        ctx.enter("import")
        factory = _together(ctx, lambda: load_factory(reference))
        ctx.note(f"model: calling {reference}")
        ctx.enter("factory")
        product = _together(ctx, lambda: _build(ctx, factory))
        ctx.note("model: forward and backward pass")
        ctx.enter("forward")
        repeat = _watch_steps(ctx, product, seen)
        ctx.enter(None)
        _together(ctx, lambda: _require_same(product.module))
        ctx.note("model: in DistributedDataParallel")
        with deferred_compiler():
            _time_wrapped(ctx, product, seen, repeat)
    except FactoryError as error:
        seen.error = describe_error(error, ctx.rank, factory)
    except _PeerFailedError:
        pass


def _together(ctx: RankContext, action: Callable[[], Any]) -> Any:
    """Run ``action`` and go on only if it worked on every rank.

    Raises:
        FactoryError: it failed here, or destroyed the process group.
        _PeerFailedError: it failed on another rank only.
    """
    error: FactoryError | None = None
    result = None
    try:
        result = action()
    except FactoryError as raised:
        error = raised
    if not dist.is_initialized():
        text = "the default process group was destroyed, although it belongs to the caller"
        raise error or FactoryError("group-destroyed", "factory", text)
    ready = torch.tensor([int(error is None)], dtype=torch.int32, device=ctx.device)
    dist.all_reduce(ready, op=dist.ReduceOp.MIN)
    if error is not None:
        raise error
    if not ready.item():
        raise _PeerFailedError
    return result


def _build(ctx: RankContext, factory: Callable[[], Any] | None) -> Product:
    assert factory is not None  # for the type checker: `_together` gave one
    product = call_factory(factory)
    with raising_as("wrap"):
        product.module.to(ctx.device)
    if not any(parameter.requires_grad for parameter in product.module.parameters()):
        raise FactoryError("not-trainable", "wrap", "no parameter of the module requires a gradient")
    return product


def _require_same(model: nn.Module) -> None:
    """After a forward, when lazy modules know their shapes: all ranks must have the same parameters.

    Raises:
        FactoryError: this rank's are others than rank 0's.
    """
    difference = find_difference(model)
    if difference is not None:
        raise FactoryError("differs", "wrap", difference)


def _watch_steps(ctx: RankContext, product: Product, seen: _Seen) -> bool:
    """Run the bare model and note what is used; return whether steps are quick enough to repeat."""
    begun = time.perf_counter()
    _together(ctx, lambda: _watch_step(ctx, product, seen))
    slowest = agree_on_slowest([time.perf_counter() - begun], ctx.device)[0]
    _count_parameters(product.module, seen)
    repeat = slowest <= ctx.plan.model_limit * SLOW_SHARE
    for _ in range(STEPS - 1 if repeat else 0):
        _together(ctx, lambda: _watch_step(ctx, product, seen))
    return repeat


def _watch_step(ctx: RankContext, product: Product, seen: _Seen) -> None:
    model = product.module
    model.zero_grad(set_to_none=True)
    with watched(model) as usage:
        _run_step(ctx, product, model)
    seen.used_sets.append(frozenset(usage.reached))
    for each in list_unused(model, usage, ctx.rank):
        seen.unused.setdefault(each.name, each)


def _run_step(ctx: RankContext, product: Product, model: nn.Module) -> None:
    with raising_as("forward"):
        output = product.call(model, ctx.device)
        loss = find_loss(output)
    with raising_as("backward"):
        loss.backward()


def find_loss(output: Any) -> torch.Tensor:
    """Return what to call ``backward`` on; the module's docstring has the rule.

    Raises:
        FactoryError: there is no floating-point tensor in the output.
    """
    if isinstance(output, torch.Tensor) and output.numel() == 1:
        return output.reshape(())
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss.sum()
    tensors = [each for each in list_tensors(output) if each.is_floating_point()]
    if not tensors:
        kind = type(output).__name__
        raise FactoryError("wrong-output", "forward", f"the output, a {kind}, has no floating-point tensor")
    return torch.stack([each.float().sum() for each in tensors]).sum()


def list_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested mappings, sequences and objects with attributes (dataclasses)."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from list_tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from list_tensors(item)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from list_tensors(getattr(value, name))


def _count_parameters(model: nn.Module, seen: _Seen) -> None:
    """Count elements; after a forward, when lazy modules know their shapes."""
    for parameter in model.parameters():
        seen.parameters += parameter.numel()
        seen.parameter_bytes += parameter.numel() * parameter.element_size()
        seen.trainable += parameter.numel() if parameter.requires_grad else 0


def _time_wrapped(ctx: RankContext, product: Product, seen: _Seen, repeat: bool) -> None:
    """Time steps with the search for unused parameters, and without where all ranks use all of them."""
    anywhere = agree_on_slowest([float(bool(seen.unused))], ctx.device)[0] > 0
    seen.step_s_with_search = _time_steps(ctx, product, seen, repeat, find_unused_parameters=True)
    if not anywhere:
        seen.step_s = _time_steps(ctx, product, seen, repeat)


def _time_steps(ctx: RankContext, product: Product, seen: _Seen, repeat: bool, **options: bool) -> float:
    """Return the median over steps of the slowest rank's seconds."""

    def prepare() -> Any:
        with raising_as("wrap"):
            return wrap(product.module, ctx, **options)

    model = _together(ctx, prepare)
    times = []
    seen.in_ddp = True
    for _ in range(1 + STEPS if repeat else 1):
        begun = time.perf_counter()
        _run_step(ctx, product, model)
        synchronize(ctx.device)
        times.append(time.perf_counter() - begun)
        model.zero_grad(set_to_none=True)
    seen.in_ddp = False
    seen.facts = read_logging_data(model)
    del model
    gc.collect()  # or its hooks would reduce the gradients of the next wrapper too
    slowest = agree_on_slowest(times, ctx.device)
    return median(slowest[1:] or slowest)  # the first also rebuilds the buckets


def _describe(ctx: RankContext, reference: str, seen: _Seen) -> ModelResult:
    sizes = seen.facts.get("rebuilt_bucket_sizes") or seen.facts.get("bucket_sizes")
    steps = len(seen.used_sets)
    return ModelResult(
        factory=reference,
        ranks=RankSet([ctx.rank]),
        parameters=seen.parameters,
        parameter_bytes=seen.parameter_bytes,
        trainable=seen.trainable,
        buckets=len(str(sizes).split(",")) if sizes else None,
        unused=tuple(seen.unused.values()),
        find_unused_needed=bool(seen.unused) if steps else None,
        static_graph_ok=len(set(seen.used_sets)) == 1 if steps > 1 else None,
        steps=steps,
        step_s=seen.step_s,
        step_s_with_search=seen.step_s_with_search,
        errors=() if seen.error is None else (seen.error,),
        facts=seen.facts,
    )
