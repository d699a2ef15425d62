"""By what torch's own function clips gradients, where ranks hold parts of one model.

A sharded optimizer of the program's own is given a part of the sum of all gradients by a reduce-scatter, or the whole
of some of them by a reduce. The norm of what one rank has is not that of the gradient: each rank then clips by another
factor. So does each stage of a pipeline. Only in steps that are looked at.
"""

from __future__ import annotations

import sys
import weakref

from ..calls import ring
from ..core import frames, lifetime, unseen, wrapping
from ..models import ddp, modules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, ModuleType
    from typing import Any

_FRAMES = 8
_EPSILON = 1e-6
"""What torch adds to a norm before it divides by it (torch/nn/utils/clip_grad.py)."""


class _Clip:
    """The last clip."""

    def __init__(
        self, parameter: Any, norm: Any, most: float, ranks: tuple[int, ...], stack: list[list[object]]
    ) -> None:
        self.parameter = weakref.ref(parameter)
        self.norm = norm
        self.most = most
        self.ranks = ranks
        self.stack = stack


_last: _Clip | None = None


def patch_clipping(module: ModuleType) -> None:
    """See gradients clipped by a norm; torch up to 2.5 has no function of its own for that."""
    if hasattr(module, "_clip_grads_with_norm_"):
        wrapping.wrap(module, "_clip_grads_with_norm_", before=note)


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child starts anew."""
    global _last
    _last = None


def note(_: Any, frame: FrameType, args: tuple[Any, ...]) -> None:
    """Remember by which norm gradients are about to be clipped, where they may be parts of those of one model.

    Args:
        frame: Of the caller.
        args: Parameters, the most that their norm may be, and their norm; nothing is noted of a call by name.
    """
    global _last
    _last = None
    if not modules.is_open():
        return  # this step is not looked at
    plain = sys.modules["torch"].Tensor
    if len(args) < 3 or type(args[2]) is not plain or not isinstance(args[1], (int, float)):
        return  # the norm of DTensors is one of all ranks, and to read it would ask them
    alone = not ddp.list_entries()
    if not isinstance(args[0], (list, tuple)) or not (alone or ring.has_scattered()):
        return
    parameters = [each for each in args[0] if getattr(each, "grad", None) is not None]
    ranks = ring.find_scattered([each.grad for each in parameters])
    if parameters and (alone or len(ranks) > 1):
        stack = frames.list_own(frame, _FRAMES)
        _last = _Clip(parameters[0], args[2], float(args[1]), ranks if len(ranks) > 1 else (), stack)


@unseen.behind
def take(tensors: list[Any]) -> tuple[float, list[list[object]], list[int]] | None:
    """Return the factor by which gradients were clipped, where, and the ranks that share them out; once for each clip.

    Args:
        tensors: Parameters of the optimizer that is about to step.
    """
    global _last
    clip, _last = _last, None
    first = clip.parameter() if clip is not None else None
    if clip is None or not any(each is first for each in tensors):
        return None
    norm = float(clip.norm)
    if not 0 < norm < float("inf"):
        return None
    return float(f"{min(1.0, clip.most / (norm + _EPSILON)):.6g}"), clip.stack, list(clip.ranks)
