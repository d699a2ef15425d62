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
from ..core.replacing import replace
from ..models import ddp, modules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, ModuleType
    from typing import Any

_CLIPS, _GROUPS = "_clip_grads_with_norm_", "_group_tensors_by_device_and_dtype"
"""Functions of torch.nn.utils.clip_grad."""
_NEAR = 8
"""Frames between what is called and what clips: ours, and a decorator's."""
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
    """See gradients clipped by a norm; torch up to 2.5 has no function of its own for that.

    From a function that it calls: it is in no traceback of what clipping raises, and what scripts import stays torch's.
    The compiler goes through ours, and leaves nothing of it: one that it may not go into breaks the graph.
    """
    real = getattr(module, _GROUPS, None)
    if real is None or not hasattr(module, _CLIPS):
        return
    see = wrapping.guard(unseen.behind(note))

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not module.torch.compiler.is_compiling():
            see()
        return real(*args, **kwargs)

    replace(module, _GROUPS, wrapper)
    vars(wrapper).pop("_torchdynamo_disable")


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child starts anew."""
    global _last
    _last = None


def note() -> None:
    """Remember by which norm gradients are about to be clipped, where they may be parts of those of one model.

    Called by what torch's function calls, which is looked for among the callers.
    """
    global _last
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_NEAR):
        if frame is None or frame.f_code.co_name == _CLIPS:
            break
        frame = frame.f_back
    if frame is None or frame.f_code.co_name != _CLIPS:
        return
    _last = None
    if not modules.is_open():
        return  # this step is not looked at
    seen = frame.f_locals
    given, most, norm = (seen.get(name) for name in ("parameters", "max_norm", "total_norm"))
    if type(norm) is not sys.modules["torch"].Tensor or not isinstance(most, (int, float)):
        return  # the norm of DTensors is one of all ranks, and to read it would ask them
    alone = not ddp.remembered
    if not isinstance(given, (list, tuple)) or not (alone or ring.has_scattered()):
        return
    parameters = [each for each in given if getattr(each, "grad", None) is not None]
    ranks = ring.find_scattered([each.grad for each in parameters])
    if parameters and (alone or len(ranks) > 1):
        stack = frames.list_own(frame, _FRAMES)
        _last = _Clip(parameters[0], norm, float(most), ranks if len(ranks) > 1 else (), stack)


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
