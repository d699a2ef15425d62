"""A small model of small integers whose gradients are known exactly, with and without DDP.

Weights are -1, 0 or 1, inputs -2 to 2, loss coefficients -1 to 2. Then hidden values are at most 9, outputs
at most 55 and gradients at most `LARGEST_GRADIENT` in magnitude: all integers that bfloat16 (8 significant
bits, integers to 256) holds exactly. So the same reference serves float32 and autocast, and any difference
is an error and not rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpdoctor.launch.context import RankContext

INPUTS, HIDDEN, OUTPUTS, BATCH = 4, 6, 3, 3

LARGEST_GRADIENT = 54.0
"""BATCH x largest coefficient (2) x largest hidden value (9), for the second layer's weight."""

Gradients = dict[str, torch.Tensor]


class Toy(nn.Module):
    """Two linear layers; random weights as torch makes them until `set_integers` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(INPUTS, HIDDEN)
        self.second = nn.Linear(HIDDEN, OUTPUTS)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map (batch, 4) to (batch, 3)."""
        outputs: torch.Tensor = self.second(torch.relu(self.first(inputs)))
        return outputs

    def set_integers(self) -> Toy:
        """Give the weights their integer values and return self."""
        with torch.no_grad():
            for shift, parameter in enumerate(self.parameters()):
                count = torch.arange(parameter.numel()).view_as(parameter)
                parameter.copy_((count * 2 + count // 5 + shift) % 3 - 1)
        return self


def make_inputs(ranks: Sequence[int], step: int, device: str = "cpu") -> torch.Tensor:
    """Return the inputs of some ranks for one micro-batch, one after the other: (ranks x batch, 4)."""
    rows = torch.arange(BATCH * INPUTS)
    values = [(rows * (rank % 3 + 1) + rows // 4 + rank * 2 + step * 3) % 5 - 2 for rank in ranks]
    return torch.cat(values).view(-1, INPUTS).to(device, torch.float32)


def compute_loss(outputs: torch.Tensor, ranks: Sequence[int]) -> torch.Tensor:
    """Return the sum over ranks of their losses; coefficients differ by rank, sample and output."""
    places = torch.arange(BATCH * OUTPUTS)
    coefficients = torch.cat([(places + places // 4 + rank) % 4 - 1 for rank in ranks])
    weights = coefficients.view(-1, OUTPUTS).to(outputs.device, outputs.dtype)
    return (outputs * weights).sum()


def compute_gradients(ranks: Sequence[int], steps: Sequence[int]) -> Gradients:
    """Return the sum of the gradients of those ranks over those micro-batches, by name, in float64.

    Computed on the bare model without torch.distributed, all ranks' data in one batch.
    """
    model = Toy().set_integers().double()
    for step in steps:
        outputs = model(make_inputs(ranks, step).double())
        compute_loss(outputs, ranks).backward()
    return {name: _require_gradient(parameter) for name, parameter in model.named_parameters()}


def mean_gradients(world_size: int, steps: Sequence[int]) -> Gradients:
    """Return what DDP must leave in ``grad``: the sum over steps, averaged over all ranks."""
    total = compute_gradients(range(world_size), steps)
    return {name: gradient / world_size for name, gradient in total.items()}


def allowed_difference(world_size: int) -> float:
    """Return how far a right mean over ranks may be from the exact one.

    DDP multiplies each gradient by 1/n and sums. For n a power of two that is exact. Else each addend is
    rounded twice (1/n, product) and each of n - 1 sums once; with addends of at most g/n the error is at most
    (n + 1) eps g (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2, with room).
    """
    if world_size & (world_size - 1) == 0:
        return 0.0
    return (world_size + 1) * torch.finfo(torch.float32).eps * LARGEST_GRADIENT


def wrap(module: nn.Module, ctx: RankContext, **options: Any) -> DistributedDataParallel:
    """Return the module, moved to the rank's device, in DistributedDataParallel."""
    device = torch.device(ctx.device)
    devices = None if device.type == "cpu" else [device]
    return DistributedDataParallel(module.to(device), device_ids=devices, **options)


def _require_gradient(parameter: nn.Parameter) -> torch.Tensor:
    if parameter.grad is None:
        raise AssertionError("the reference model gave no gradient")
    return parameter.grad
