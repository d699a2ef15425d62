"""By what torch's own function clips gradients that a sharded optimizer of the program's holds parts of.

Such an optimizer is given a part of the sum of all gradients by a reduce-scatter, or the whole of some of them by a
reduce. The norm of what one rank has is not that of the gradient: each rank then clips by another factor.
"""

from __future__ import annotations

from ..calls import ring
from ..core import frames, lifetime, unseen, wrapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, ModuleType
    from typing import Any

_FRAMES = 8
_EPSILON = 1e-6
"""What torch adds to a norm before it divides by it (torch/nn/utils/clip_grad.py)."""


class _Clip:
    """The last clip of such gradients."""

    def __init__(self, norm: Any, most: float, ranks: tuple[int, ...], stack: list[list[object]]) -> None:
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
    """Remember by which norm gradients are about to be clipped, where they are parts of sums.

    Args:
        frame: Of the caller.
        args: Parameters, the most that their norm may be, and their norm; nothing is noted of a call by name.
    """
    global _last
    _last = None
    if len(args) < 3 or not isinstance(args[0], (list, tuple)) or not isinstance(args[1], (int, float)):
        return
    gradients = [each.grad for each in args[0] if getattr(each, "grad", None) is not None]
    ranks = ring.find_scattered(gradients) if gradients else ()
    if len(ranks) > 1:
        _last = _Clip(args[2], float(args[1]), ranks, frames.list_own(frame, _FRAMES))


@unseen.behind
def take() -> tuple[float, list[list[object]], list[int]] | None:
    """Return the factor by which such gradients were clipped, where, and the ranks that share them out; once each."""
    global _last
    clip, _last = _last, None
    norm = float(clip.norm) if clip is not None else 0.0
    if clip is None or not 0 < norm < float("inf"):
        return None
    return float(f"{min(1.0, clip.most / (norm + _EPSILON)):.6g}"), clip.stack, list(clip.ranks)
