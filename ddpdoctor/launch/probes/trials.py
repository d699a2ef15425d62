"""The experiments with DistributedDataParallel, each on its own; `ddpdoctor.launch.probes.ddp` runs them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpdoctor.evidence import Experiment, RankMessage, RankSet
from ddpdoctor.launch.context import RankContext
from ddpdoctor.launch.probes.collectives import compare_outcome
from ddpdoctor.launch.probes.fingerprints import fingerprint_all, gather_rows, word_difference
from ddpdoctor.launch.probes.operations import Outcome
from ddpdoctor.launch.probes.toy import (
    Gradients,
    Toy,
    allowed_difference,
    compute_gradients,
    compute_loss,
    make_inputs,
    mean_gradients,
    wrap,
)
from ddpdoctor.launch.probes.usage import find_unused

Fact = float | int | str | bool | None

STEPS = 20
"""Steps after which replicas are compared: a divergence shows in the first, 20 let one build up."""

SCALE = 256.0
"""First scale of the GradScaler: a power of two, so that scaling and unscaling are exact."""

LEARNING_RATE = 0.5
"""A power of two: an update of integers by it is exact."""


@dataclass
class Verdict:
    """What one experiment saw on this rank."""

    wrong: list[str] = field(default_factory=list)
    tensor: str | None = None
    difference: float | None = None
    facts: dict[str, Fact] = field(default_factory=dict)
    skipped: str | None = None

    def blame(self, text: str, tensor: str | None = None, difference: float | None = None) -> None:
        """Add something that was wrong; the first tensor and the largest difference are kept."""
        self.wrong.append(text)
        self.tensor = self.tensor or tensor
        if difference is not None:
            self.difference = max(difference, self.difference or 0.0)


def emit_verdict(ctx: RankContext, kind: str, name: str, verdict: Verdict) -> None:
    """Emit what this rank saw of one experiment.

    Args:
        ctx: of the rank.
        kind: of evidence: ``experiments`` or ``strategies``.
        name: of the experiment.
        verdict: what it saw.
    """
    me = RankSet([ctx.rank])
    passed = not verdict.wrong and verdict.skipped is None
    ctx.emit(
        kind,
        Experiment(
            name=name,
            passed=me if passed else RankSet(),
            failures=tuple(RankMessage(me, text) for text in verdict.wrong),
            skipped=verdict.skipped,
            tensor=verdict.tensor,
            largest_difference=verdict.difference,
            facts=verdict.facts,
        ),
    )


@dataclass
class Bench:
    """What the experiments share, so that DDP is built as seldom as possible."""

    ctx: RankContext
    integers: DistributedDataParallel
    """Toy with integer weights."""
    trained: DistributedDataParallel
    """Toy with random weights, which differ over ranks before DDP makes them equal."""
    optimizer: torch.optim.Optimizer
    """Optimizer of ``trained``."""

    @property
    def device_type(self) -> str:
        """``cpu`` or ``cuda``."""
        return torch.device(self.ctx.device).type


def build_bench(ctx: RankContext) -> Bench:
    """Wrap the two models; the seed of the second differs on each rank."""
    torch.manual_seed(1000 + ctx.rank)
    trained = wrap(Toy(), ctx)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.05, momentum=0.9)
    return Bench(ctx, wrap(Toy().set_integers(), ctx), trained, optimizer)


def run_step(bench: Bench, micro_batch: int) -> torch.Tensor:
    """Forward and backward of this rank's micro-batch on the integer model; return the outputs."""
    ranks = (bench.ctx.rank,)
    outputs: torch.Tensor = bench.integers(make_inputs(ranks, micro_batch, bench.ctx.device))
    compute_loss(outputs, ranks).backward()
    return outputs


def compare_gradients(
    verdict: Verdict, model: nn.Module, expected: Gradients, what: str, slack: float
) -> None:
    """Blame each parameter of ``model`` whose gradient is further than ``slack`` from ``expected``."""
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            verdict.blame(f"{name} has no gradient, expected {what}", name)
            continue
        got, wanted = parameter.grad.flatten().cpu().double(), expected[name].flatten()
        text = compare_outcome(Outcome(got, wanted, f"{name} is not {what}"), slack)
        if text is not None:
            verdict.blame(text, name, (got - wanted).abs().max().item())


def try_gradient_mean(bench: Bench) -> Verdict:
    """Gradients after backward are the mean over ranks."""
    verdict, size = Verdict(), bench.ctx.world_size
    bench.integers.zero_grad(set_to_none=True)
    run_step(bench, 0)
    slack = allowed_difference(size)
    what = "the mean of the gradients across ranks"
    compare_gradients(verdict, bench.integers.module, mean_gradients(size, [0]), what, slack)
    verdict.facts = {"tolerance": slack, **read_logging_data(bench.integers)}
    return verdict


def try_no_sync(bench: Bench) -> Verdict:
    """Under no_sync gradients stay local; the first backward outside reduces what has accumulated."""
    verdict, size, model = Verdict(), bench.ctx.world_size, bench.integers.module
    slack = allowed_difference(size) * 2  # two micro-batches: gradients up to twice as large
    bench.integers.zero_grad(set_to_none=True)
    with bench.integers.no_sync():
        run_step(bench, 1)
    local = compute_gradients([bench.ctx.rank], [1])
    compare_gradients(verdict, model, local, "this rank's own gradient inside no_sync", 0.0)
    run_step(bench, 2)
    what = "the mean across ranks of two accumulated micro-batches"
    compare_gradients(verdict, model, mean_gradients(size, [1, 2]), what, slack)
    verdict.facts = {"tolerance": slack, "micro_batches": 2}
    return verdict


def try_autocast(bench: Bench) -> Verdict:
    """Under bfloat16 autocast the same gradients come out, in float32."""
    if bench.device_type == "cuda" and not torch.cuda.is_bf16_supported():
        return Verdict(skipped="this GPU has no bfloat16")
    verdict, size = Verdict(), bench.ctx.world_size
    bench.integers.zero_grad(set_to_none=True)
    with torch.autocast(bench.device_type, dtype=torch.bfloat16):
        outputs = run_step(bench, 3)
    if outputs.dtype is not torch.bfloat16:
        verdict.blame(f"the forward pass returned {outputs.dtype} under autocast to torch.bfloat16")
    slack = allowed_difference(size)
    what = "the mean of the gradients across ranks"
    compare_gradients(verdict, bench.integers.module, mean_gradients(size, [3]), what, slack)
    verdict.facts = {"tolerance": slack, "dtype": "bfloat16"}
    return verdict


def try_replicas_equal(bench: Bench) -> Verdict:
    """After each of many steps with different data every rank holds the same parameters, bit for bit.

    Fingerprints of each step are kept and exchanged once at the end: exchanged in each step they would cost
    more than the steps.
    """
    verdict, ctx, model = Verdict(facts={"steps": STEPS}), bench.ctx, bench.trained.module
    generator = torch.Generator().manual_seed(2000 + ctx.rank)
    history = [fingerprint_all(list(model.parameters()))]
    for _ in range(STEPS):
        inputs = torch.randn(4, 4, generator=generator).to(ctx.device)
        bench.optimizer.zero_grad(set_to_none=True)
        bench.trained(inputs).square().mean().backward()
        bench.optimizer.step()
        history.append(fingerprint_all(list(model.parameters())))
    table = gather_rows(torch.stack(history))  # (rank, step, tensor)
    unequal = (table != table[0]).any(0).nonzero()
    if unequal.numel():
        step, index = unequal[0].tolist()
        name, parameter = list(model.named_parameters())[index]
        verdict.facts["first_step"] = step
        verdict.tensor, verdict.difference = name, _spread(parameter)
        text = word_difference(table[:, step, index].tolist(), ctx.rank, f"{name} after step {step}")
        verdict.wrong = [text] if text else []
    return verdict


def _spread(tensor: torch.Tensor) -> float:
    """Return the largest difference of an element over ranks; all ranks must call it."""
    low, high = tensor.detach().clone(), tensor.detach().clone()
    dist.all_reduce(low, op=dist.ReduceOp.MIN)
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    return (high - low).abs().max().item()


def try_grad_scaler(bench: Bench) -> Verdict:
    """With a GradScaler an infinity on one rank makes all ranks skip the step, and scales stay equal."""
    scaler = _make_scaler(bench.device_type)
    if scaler is None:
        return Verdict(skipped=f"torch has no GradScaler for {bench.device_type}")
    verdict, ctx, model = Verdict(facts={"first_scale": SCALE}), bench.ctx, bench.integers.module
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD(bench.integers.parameters(), lr=LEARNING_RATE)
    _scaled_step(bench, scaler, optimizer, planted=False)
    mean = mean_gradients(ctx.world_size, [4])
    updated = {n: v.cpu().double() - LEARNING_RATE * mean[n] for n, v in before.items()}
    slack = allowed_difference(ctx.world_size)
    _compare_parameters(verdict, model, updated, "the step that was scaled and unscaled", slack)
    after = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    _scaled_step(bench, scaler, optimizer, planted=ctx.rank == ctx.world_size - 1)
    held = {name: value.cpu().double() for name, value in after.items()}
    _compare_parameters(verdict, model, held, "unchanged by a step with an infinity on one rank", 0.0)
    scale = scaler.get_scale()
    verdict.facts["last_scale"] = scale
    if scale != SCALE / 2:
        verdict.blame(f"the scale is {scale:g} after an infinity on one rank, expected {SCALE / 2:g}")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(before[name])
    return verdict


def _make_scaler(device_type: str) -> Any:
    """Return a GradScaler, or None where this torch has none for the device (CPU came with 2.3)."""
    amp: Any = getattr(torch, "amp", None)
    if not hasattr(amp, "GradScaler"):
        return None
    scaler = amp.GradScaler(device_type, init_scale=SCALE, growth_interval=1000)
    return scaler if scaler.is_enabled() else None


def _scaled_step(bench: Bench, scaler: Any, optimizer: torch.optim.Optimizer, *, planted: bool) -> None:
    ranks = (bench.ctx.rank,)
    optimizer.zero_grad(set_to_none=True)
    inputs = make_inputs(ranks, 4, bench.ctx.device)
    if planted:
        inputs = torch.full_like(inputs, float("inf"))
    scaler.scale(compute_loss(bench.integers(inputs), ranks)).backward()
    scaler.step(optimizer)
    scaler.update()


def _compare_parameters(
    verdict: Verdict, model: nn.Module, expected: Gradients, what: str, slack: float
) -> None:
    for name, parameter in model.named_parameters():
        got, wanted = parameter.detach().flatten().cpu().double(), expected[name].flatten()
        text = compare_outcome(Outcome(got, wanted, f"{name} is not {what}"), slack)
        if text is not None:
            verdict.blame(text, name, (got - wanted).abs().max().item())


class Forked(nn.Module):
    """A model with planted unused parameters: one branch never runs, one runs and is cut off the loss."""

    PLANTED: ClassVar = {"idle.weight": False, "idle.bias": False, "cut.weight": True, "cut.bias": True}
    """Name -> whether the owning module's forward runs."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, 3)
        self.idle = nn.Linear(4, 3)
        self.cut = nn.Linear(3, 3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map (batch, 4) to a scalar."""
        hidden = self.used(inputs)
        loss: torch.Tensor = self.frozen(hidden).sum() + self.cut(hidden).detach().sum()
        return loss


def try_unused_named(bench: Bench) -> Verdict:
    """The planted unused parameters, and no others, are named: by our hooks and by DDP itself."""
    verdict, ctx = Verdict(), bench.ctx
    inputs = make_inputs((ctx.rank,), 0, ctx.device)
    model = Forked().to(ctx.device)
    unused = find_unused(model, lambda forked: forked(inputs), ctx.rank)
    found = {each.name: each.forward_ran for each in unused}
    if found != Forked.PLANTED:
        verdict.blame(f"the hooks named {found}, planted were {Forked.PLANTED}")
    searching = wrap(Forked(), ctx, find_unused_parameters=True)
    for _ in range(2):
        searching.zero_grad(set_to_none=True)
        searching(inputs).backward()
    empty = {n for n, p in searching.module.named_parameters() if p.requires_grad and p.grad is None}
    if empty != set(Forked.PLANTED):
        verdict.blame(f"with find_unused_parameters=True {sorted(empty)} had no gradient")
    named = _provoke_complaint(ctx, inputs)
    verdict.facts = {"planted": len(Forked.PLANTED), "named_by_ddp": named is not None}
    if named is not None and named != set(Forked.PLANTED):
        verdict.blame(f"DDP's own error named {sorted(named)}")
    return verdict


def _provoke_complaint(ctx: RankContext, inputs: torch.Tensor) -> set[str] | None:
    """Return the parameters that DDP names when it refuses a second forward; None if it names none.

    Nothing is left in flight: all parameters are in one bucket, which without the planted ones never fills.
    """
    plain = wrap(Forked(), ctx)
    plain(inputs).backward()
    try:
        plain(inputs)
    except RuntimeError as problem:
        said = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(problem))
        trainable = [name for name, p in plain.module.named_parameters() if p.requires_grad]
        return {trainable[int(index)] for index in said[1].split()} if said else None
    return set()


_LOGGED = (
    "backend_name", "broadcast_buffers", "bucket_cap_bytes", "bucket_sizes", "comm_hook",
    "find_unused_parameters", "gradient_as_bucket_view", "has_rebuilt_buckets", "initial_bucket_sizes",
    "is_multi_device_module", "module_name", "num_parameter_tensors", "rebuilt_bucket_sizes", "static_graph",
    "total_parameter_size_bytes", "world_size",
)  # fmt: skip
"""What is kept of DDP's logging data: settings and sizes, no environment and no averages of one step."""


def read_logging_data(model: DistributedDataParallel) -> dict[str, Fact]:
    """Return the settings and sizes that DDP logs; empty where this torch does not tell."""
    try:
        data = model._get_ddp_logging_data()
    except (AttributeError, AssertionError, RuntimeError):
        return {}
    return {key: data[key] for key in _LOGGED if isinstance(data.get(key), (int, float, str, bool))}
