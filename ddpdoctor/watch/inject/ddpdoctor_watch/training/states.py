"""State of optimizers, momentum and the like: fingerprints of it, by its names for the parts."""

from __future__ import annotations

import sys

from ..models import prints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PARTS = 6
"""Parts of a state that are looked at (Adam has three, or four)."""
TENSORS = 3000
"""Parameters of which the state is looked at, all parts together."""
SETTINGS, GROUPS = 12, 16
"""Settings that are listed, and groups of parameters of which they are."""
_PASSED_OVER = ("lr", "initial_lr", "foreach", "fused", "capturable", "differentiable")
"""Settings that are looked at elsewhere, or that say only how the same is computed."""
_SHARDED = "ZeroRedundancyOptimizer"


def measure(optimizer: Any, parameters: list[Any]) -> list[tuple[str, list[list[object] | None]]] | None:
    """Return for each part of an optimizer's state a fingerprint for each parameter.

    Args:
        optimizer: Any.
        parameters: Of it.

    Returns:
        For each part its name, and for each parameter a fingerprint as of `prints.measure`, None where it has none.
        None where each rank holds another piece of the state.
    """
    if any(kind.__name__ == _SHARDED for kind in type(optimizer).__mro__):
        return None
    held = [optimizer.state.get(each) for each in parameters[:TENSORS]]
    names = dict.fromkeys(name for each in held if type(each) is dict for name in each if type(name) is str)
    chosen = sorted(names)[: max(1, min(PARTS, TENSORS // max(1, len(held))))]
    return [(name, _measure([_pick(each, name) for each in held])) for name in chosen]


def list_settings(optimizer: Any) -> list[list[str]]:
    """Return the settings of an optimizer (weight decay, betas): their names, and the values in all groups."""
    groups = optimizer.param_groups[:GROUPS]
    names = [name for name in (groups[0] if groups else ()) if name not in ("params", *_PASSED_OVER)]
    told = [[str(name), ", ".join(_tell(group.get(name)) for group in groups)] for name in names]
    return [[name, text] for name, text in told if text.strip(", ")][:SETTINGS]


def _tell(value: Any) -> str:
    """Return a number, or some of them, as a text; empty for everything else."""
    if type(value) in (bool, int, float):
        return repr(value)
    if type(value) is tuple and value and all(type(each) in (int, float) for each in value):
        return repr(value)
    return ""


def _pick(held: Any, name: str) -> Any:
    return held.get(name) if type(held) is dict else None


def _measure(values: list[Any]) -> list[list[object] | None]:
    torch: Any = sys.modules["torch"]
    plain: list[list[object] | None] = [None] * len(values)
    tensors = list(values)
    for place, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            if type(value) is not torch.Tensor or value.dim() or value.device.type != "cpu":
                continue
            value = value.item()  # a counter of steps: in half the time of a fingerprint
        tensors[place] = None
        if isinstance(value, (bool, int, float)):
            plain[place] = [repr(float(value)), float(value)]
    return [known or measured for known, measured in zip(plain, prints.measure(tensors))]
