"""Which parameters take part in a loss: hooks on the gradients, and on the forwards of all modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ddpdoctor.evidence import RankSet, UnusedParameter


@dataclass
class Usage:
    """What happened in one forward and backward."""

    reached: set[str] = field(default_factory=set)
    """Names of parameters that got a gradient."""
    ran: set[str] = field(default_factory=set)
    """Qualified names of modules whose forward was called; the root is the empty name."""


@contextmanager
def watched(model: nn.Module) -> Iterator[Usage]:
    """Watch ``model`` while the block runs; all hooks are gone afterwards.

    A parameter that two modules share is known by its first name, as in `named_parameters`.
    """
    usage = Usage()
    handles: list[Any] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            handles.append(parameter.register_hook(_noting(usage.reached, name)))
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(_noting(usage.ran, name)))
    try:
        yield usage
    finally:
        for handle in handles:
            handle.remove()


def _noting(names: set[str], name: str) -> Callable[..., None]:
    def note(*_: Any) -> None:
        names.add(name)

    return note


def list_unused(model: nn.Module, usage: Usage, rank: int) -> list[UnusedParameter]:
    """Return the trainable parameters of ``model`` that got no gradient, in the order of the model."""
    modules = dict(model.named_modules())
    return [
        UnusedParameter(
            name=name,
            module=name.rpartition(".")[0],
            module_class=type(modules.get(name.rpartition(".")[0], model)).__name__,
            forward_ran=name.rpartition(".")[0] in usage.ran,
            ranks=RankSet([rank]),
            count=parameter.numel(),
        )
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and name not in usage.reached
    ]


def find_unused(
    model: nn.Module, compute: Callable[[nn.Module], torch.Tensor], rank: int = 0
) -> list[UnusedParameter]:
    """Run ``compute`` (a forward that returns the loss) and its backward, and return what was unused."""
    with watched(model) as usage:
        compute(model).backward()
    return list_unused(model, usage, rank)
