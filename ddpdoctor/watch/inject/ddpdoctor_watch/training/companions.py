"""Models that run beside the one that is trained: a teacher, a moving average, a network that only scores.

Nothing makes their replicas equal, for DistributedDataParallel knows nothing of them. Looked at where all of a step
is, and only those that ran in it.
"""

from __future__ import annotations

from ..core import budget, describe
from ..models import layouts, modules, prints, tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TENSORS = 1000
"""Parameters of one that are looked at."""


def note(optimizer: int, step: int, optimizers: list[Any]) -> None:
    """Write down what this rank holds of them before a step.

    Args:
        optimizer: Number of the one whose step it is.
        step: Its number.
        optimizers: All that are known; what they step is no companion.
    """
    owned = {
        id(each)
        for known in optimizers
        if known is not None
        for group in known.param_groups
        for each in group["params"]
    }
    for number, model, frames in modules.list_companions(owned):
        tensors = [each for _, each in tree.list_parameters(model)[:TENSORS]]
        if layouts.is_sharded(model) or any(each.grad is not None for each in tensors):
            continue  # it is trained by hand; or each rank holds another part, as it should
        measured = prints.measure(tensors)
        budget.write(
            "companion",
            {
                "number": number,
                "class": describe.name_type(type(model)),
                "optimizer": optimizer,
                "step": step,
                "count": len(tensors),
                "digest": prints.fold(measured),
                "norm": sum(_square(each) for each in measured) ** 0.5,
                "frames": frames,
            },
        )


def _square(measured: list[object] | None) -> float:
    norm = measured[1] if measured is not None else None
    return norm * norm if isinstance(norm, float) else 0.0
