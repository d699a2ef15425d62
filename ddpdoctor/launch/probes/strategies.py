"""FSDP2, tensor and pipeline parallelism and distributed checkpoints, each on a small model whose outcome is known.

All numbers are small integers, which float32 holds exactly whatever the order of a sum; only FSDP2's mean over a number
of ranks that is no power of two may be rounded (`toy.allowed_difference`).
"""

from __future__ import annotations

import contextlib
import gc
import shutil
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ddpdoctor.launch.context import RankContext
from ddpdoctor.launch.defects import pass_defect
from ddpdoctor.launch.probes.base import ProbeError, find_refusal, preserved_random_state, word_exception
from ddpdoctor.launch.probes.collectives import compare_outcome
from ddpdoctor.launch.probes.operations import Outcome
from ddpdoctor.launch.probes.sharing import find_common_directory
from ddpdoctor.launch.probes.toy import (
    Gradients,
    Toy,
    allowed_difference,
    compute_loss,
    make_inputs,
    mean_gradients,
)
from ddpdoctor.launch.probes.trials import LEARNING_RATE, Verdict, emit_verdict

WIDTH = 4
"""Features of a layer of the pipeline, and of one rank's share of the tensor-parallel hidden layer."""
BATCH = 8
"""Samples; `MICRO_BATCHES` of them go through the pipeline one after the other."""
MICRO_BATCHES = 4
FOLDER = "distributed-checkpoint"


class _Missing(Exception):
    """This torch does not have what is to be tried; the text says what."""


def probe_strategies(ctx: RankContext) -> None:
    """Try the strategies that were asked for and emit one `Experiment` for each.

    Raises:
        ProbeError: one raised, so that the ranks may be out of step; it has been emitted as a failure.
    """
    try:
        with preserved_random_state():
            for name in ctx.plan.launch.strategies or tuple(TRIALS):
                _run(ctx, name)
    finally:
        gc.collect()  # what holds a process group must go before it does


def _run(ctx: RankContext, name: str) -> None:
    ctx.note(f"strategy {name}")
    try:
        verdict = TRIALS[name](ctx)
    except _Missing as missing:
        verdict = Verdict(skipped=str(missing))
    except Exception as problem:
        pass_defect(problem)
        refusal = find_refusal(problem)
        if refusal is None:
            text = word_exception(problem)
            emit_verdict(ctx, "strategies", name, Verdict(wrong=[text]))
            raise ProbeError(f"the strategy {name} failed: {text}") from problem
        # gloo of older torches has no reduce_scatter; every rank is refused before anything was sent
        verdict = Verdict(skipped=f"not available in torch {torch.__version__} with {ctx.backend}: {refusal}")
    emit_verdict(ctx, "strategies", name, verdict)


def _take(*places: tuple[str, str]) -> Any:
    """Return the first object that this torch has of modules and names.

    Raises:
        _Missing: it has none of them.
    """
    for module, name in places:
        with contextlib.suppress(ImportError, AttributeError):
            return getattr(__import__(module, fromlist=[name]), name)
    raise _Missing(f"{places[0][0]}.{places[0][1]} is not available in torch {torch.__version__}")


def _make_mesh(ctx: RankContext) -> Any:
    make = _take(("torch.distributed.device_mesh", "init_device_mesh"))
    return make(torch.device(ctx.device).type, (ctx.world_size,))


def _whole(tensor: Any) -> torch.Tensor:
    """Return all of a DTensor, on every rank; a plain tensor as it is. A collective call."""
    full = getattr(tensor, "full_tensor", None)
    made: torch.Tensor = tensor if full is None else full()
    return made.detach()


def _compare(
    verdict: Verdict, got: torch.Tensor, wanted: torch.Tensor, name: str, what: str, slack: float
) -> None:
    """Blame a tensor that is further than ``slack`` from what it must be."""
    if got.shape != wanted.shape:
        verdict.blame(f"{name} has the shape {tuple(got.shape)}, not {tuple(wanted.shape)}", name)
        return
    one, other = got.flatten().cpu().double(), wanted.flatten().cpu().double()
    text = compare_outcome(Outcome(one, other, f"{name} is not {what}"), slack)
    if text is not None:
        verdict.blame(text, name, (one - other).abs().max().item())


def try_fsdp2(ctx: RankContext) -> Verdict:
    """fully_shard: gradients are the mean over ranks, also of micro-batches that accumulate, and a step uses them."""
    shard = _take(
        ("torch.distributed.fsdp", "fully_shard"), ("torch.distributed._composable.fsdp", "fully_shard")
    )
    verdict, size, mesh = Verdict(), ctx.world_size, _make_mesh(ctx)
    model = Toy().set_integers().to(ctx.device)
    before = {name: parameter.detach().cpu().clone() for name, parameter in model.named_parameters()}
    for layer in (model.first, model.second):
        shard(layer, mesh=mesh)
    shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    slack = 2 * allowed_difference(size)  # two micro-batches: gradients up to twice as large

    def step(micro_batch: int, reduced: list[int]) -> Gradients:
        compute_loss(model(make_inputs([ctx.rank], micro_batch, ctx.device)), [ctx.rank]).backward()
        expected = mean_gradients(size, reduced) if reduced else {}
        what = "the mean of the gradients across ranks"
        for name, parameter in model.named_parameters() if reduced else ():
            if parameter.grad is None:
                verdict.blame(f"{name} has no gradient", name)
                continue
            gradient = _whole(parameter.grad)
            _compare(verdict, gradient, expected[name], f"the gradient of {name}", what, slack)
        return expected

    step(0, [0])
    optimizer.zero_grad()
    model.set_requires_gradient_sync(False)  # type: ignore[operator]  # fully_shard has made it an FSDPModule
    step(1, [])
    model.set_requires_gradient_sync(True)  # type: ignore[operator]  # as above
    expected = step(2, [1, 2])
    optimizer.step()
    for name, parameter in model.named_parameters():
        wanted = before[name] - LEARNING_RATE * expected[name]
        what = "what the optimizer step must leave"
        _compare(verdict, _whole(parameter), wanted, name, what, slack)
    verdict.facts = {"tolerance": slack, "micro_batches": 2}
    return verdict


def _make_pair(hidden: int) -> nn.Sequential:
    """Two linear layers of small integers with a hidden layer of so many features.

    The second has no bias: a layer by rows adds a share of it on each rank, which may be rounded.
    """
    model = nn.Sequential(nn.Linear(WIDTH, hidden), nn.ReLU(), nn.Linear(hidden, WIDTH, bias=False))
    with torch.no_grad():
        for shift, parameter in enumerate(model.parameters()):
            count = torch.arange(parameter.numel()).view_as(parameter)
            parameter.copy_((count * 2 + count // 5 + shift) % 3 - 1)
    return model


def _make_samples(device: str) -> torch.Tensor:
    rows = torch.arange(BATCH * WIDTH)
    return ((rows * 2 + rows // 3) % 5 - 2).view(BATCH, WIDTH).to(device, torch.float32)


def try_tp(ctx: RankContext) -> Verdict:
    """A hidden layer over all ranks, by columns and then by rows: output and gradients are those of one process."""
    package = "torch.distributed.tensor.parallel"
    parallelize, by_columns, by_rows = (
        _take((package, name)) for name in ("parallelize_module", "ColwiseParallel", "RowwiseParallel")
    )
    verdict, hidden = Verdict(), WIDTH * ctx.world_size
    alone, model = _make_pair(hidden), _make_pair(hidden).to(ctx.device)
    parallelize(model, _make_mesh(ctx), {"0": by_columns(), "2": by_rows()})
    wanted = _run_alone(alone, _make_samples("cpu"))
    wanted.sum().backward()
    output = model(_make_samples(ctx.device))
    output.sum().backward()
    _compare(verdict, _whole(output), wanted.detach(), "the output", "that of one process", 0.0)
    for (name, parameter), reference in zip(model.named_parameters(), alone.parameters(), strict=True):
        if parameter.grad is None or reference.grad is None:
            verdict.blame(f"{name} has no gradient", name)
            continue
        gradient = _whole(parameter.grad)
        _compare(verdict, gradient, reference.grad, f"the gradient of {name}", "that of one process", 0.0)
    verdict.facts = {"tolerance": 0.0, "hidden": hidden}
    return verdict


def _run_alone(model: nn.Module, samples: torch.Tensor) -> torch.Tensor:
    """Return the output of one process."""
    output: torch.Tensor = model(samples)
    return output


def _make_stage(number: int) -> nn.Linear:
    """One layer of the pipeline: it moves the features on by one and changes the sign of some, so nothing grows."""
    layer = nn.Linear(WIDTH, WIDTH)
    with torch.no_grad():
        signs = torch.tensor([(-1.0) ** ((place + number) % 3) for place in range(WIDTH)])
        layer.weight.copy_(torch.roll(torch.diag(signs), 1, 0))
        layer.bias.fill_(number % 2)
    return layer


def _add_up(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output * target).sum()


def try_pp(ctx: RankContext) -> Verdict:
    """A layer on each rank and micro-batches through them: outputs and gradients are those of one process."""
    if ctx.world_size == 1:
        return Verdict(skipped="requires at least two ranks")
    make_stage = _take(("torch.distributed.pipelining", "PipelineStage"))
    make_schedule = _take(("torch.distributed.pipelining", "ScheduleGPipe"))
    verdict, last = Verdict(), ctx.world_size - 1
    alone = nn.Sequential(*(_make_stage(number) for number in range(ctx.world_size)))
    samples, targets = _make_samples("cpu"), _make_samples("cpu").flip(0)
    wanted = _run_alone(alone, samples)
    for part, target in zip(samples.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES), strict=True):
        _add_up(_run_alone(alone, part), target).backward()
    layer = _make_stage(ctx.rank).to(ctx.device)
    example = samples[: BATCH // MICRO_BATCHES].to(ctx.device)
    stage = make_stage(layer, ctx.rank, ctx.world_size, torch.device(ctx.device), input_args=(example,))
    # Whether gradients are divided by the micro-batches is a setting of later versions; what it does is known.
    schedule = make_schedule(stage, MICRO_BATCHES, loss_fn=_add_up)
    given = (samples.to(ctx.device),) if ctx.rank == 0 else ()
    output = schedule.step(*given, **({"target": targets.to(ctx.device)} if ctx.rank == last else {}))
    if ctx.rank == last:
        _compare(verdict, output.detach(), wanted.detach(), "the output", "that of one process", 0.0)
    share = MICRO_BATCHES if getattr(schedule, "scale_grads", False) else 1
    for (name, parameter), reference in zip(
        layer.named_parameters(), alone[ctx.rank].parameters(), strict=True
    ):
        if parameter.grad is None or reference.grad is None:
            verdict.blame(f"{name} of stage {ctx.rank} has no gradient", name)
            continue
        what = f"the gradient of {name} of stage {ctx.rank}"
        _compare(verdict, parameter.grad, reference.grad / share, what, "that of one process", 0.0)
    verdict.facts = {"tolerance": 0.0, "stages": ctx.world_size, "micro_batches": MICRO_BATCHES}
    return verdict


def try_dcp(ctx: RankContext) -> Verdict:
    """A tensor shared out over the ranks is saved by all, and read again in its shards and whole, bit for bit."""
    checkpoint = "torch.distributed.checkpoint"
    save, load = _take((checkpoint, "save")), _take((checkpoint, "load"))
    writer, reader = _take((checkpoint, "FileSystemWriter")), _take((checkpoint, "FileSystemReader"))
    places = (("torch.distributed.tensor", "{}"), ("torch.distributed._tensor", "{}"))
    distribute, shard, replicate = (
        _take(*((module, name) for module, _ in places))
        for name in ("distribute_tensor", "Shard", "Replicate")
    )
    folder = find_common_directory(ctx)
    if folder is None:
        return Verdict(skipped="the ranks have no directory in common")
    verdict, mesh = Verdict(), _make_mesh(ctx)
    whole = torch.arange(ctx.world_size * WIDTH * WIDTH, dtype=torch.float32).view(-1, WIDTH).to(ctx.device)
    path = folder / FOLDER
    save({"weight": distribute(whole, mesh, [shard(0)]), "step": 7}, storage_writer=writer(path))
    dist.barrier()
    for placement, name in ((shard(0), "the shards"), (replicate(), "the whole tensor")):
        into: dict[str, Any] = {
            "weight": distribute(torch.zeros_like(whole), mesh, [placement]), "step": 0,
        }  # fmt: skip
        load(into, storage_reader=reader(path))
        _compare(verdict, _whole(into["weight"]), whole, name, "what was saved", 0.0)
        if into["step"] != 7:
            verdict.blame(f"a number was saved as 7 and loaded as {into['step']}")
    dist.barrier()
    if ctx.rank == 0:
        shutil.rmtree(path, ignore_errors=True)
    verdict.facts = {"elements": whole.numel()}
    return verdict


TRIALS: dict[str, Callable[[RankContext], Verdict]] = {
    "fsdp2": try_fsdp2,
    "tp": try_tp,
    "pp": try_pp,
    "dcp": try_dcp,
}
"""Name -> what is tried, in the order in which they run."""
