"""What a token or sample counts for in the loss of a step: read from autograd's graph as a backward begins.

A loss that is a mean over what a rank has makes each token of a rank with few of them count for more. Which mean that
is, over how many, and what the program divides or multiplies it by afterwards stands in the graph that leads to it.
"""

from __future__ import annotations

import sys

from ..core import frames, lifetime, unseen
from . import gathers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

NODES = 24
"""Most nodes of a loss's graph that are searched, from the loss on."""
MOST = 64
"""Losses of one step that are written down."""
_FRAMES = 8
_MEAN = 1
"""torch.nn._reduction.get_enum("mean")"""
_LIKELIHOODS = ("NllLossBackward0", "NllLoss2DBackward0")
_SCALES = ("MulBackward0", "DivBackward0")
_REDUCTIONS = ("SumBackward0", "MeanBackward0")
"""Of losses of each token, which a mask was multiplied with or some of which were chosen."""
_EACH = (*_LIKELIHOODS, "GatherBackward0")
"""What makes a loss of each token: cross-entropy that reduces nothing, log-probabilities of the tokens."""
_CHOOSING = ("IndexBackward0", "MaskedSelectBackward0", "SliceBackward0", "TransposeBackward0")
_BELOW = 8
"""Most functions between a reduction and the losses of each token."""
_KEEPING = (
    "ViewBackward0",
    "CloneBackward0",
    "ToCopyBackward0",
    "AddBackward0",
    "SqueezeBackward0",
    "SqueezeBackward1",
    "UnsqueezeBackward0",
    "NegBackward0",
)


class _State:
    """Losses that this process has read since they were last taken, and the frames of the first backward."""

    def __init__(self) -> None:
        self.rows: list[list[float]] = []
        self.frames: list[list[object]] = []


_state = _State()


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child starts anew."""
    global _state
    _state = _State()


def note_backward(loss: Any, frame: FrameType) -> None:
    """Look at a loss, in a step in which modules are looked at.

    Args:
        loss: Whose backward begins.
        frame: Of torch.autograd.backward.
    """
    if len(_state.rows) < MOST:
        _look_through(loss, frame)


def take() -> tuple[list[list[float]], list[list[object]]]:
    """Return what was seen since this was asked last: over how many each loss is, and what one of them counts for.

    And the frames of the first backward.
    """
    rows, _state.rows = _state.rows, []
    return rows, _state.frames if rows else []


@unseen.behind
def _look_through(loss: Any, frame: FrameType) -> None:
    torch: Any = sys.modules["torch"]
    if type(loss) is not torch.Tensor or loss.numel() != 1 or loss.grad_fn is None:
        return
    queue: list[tuple[Any, float]] = [(loss.grad_fn, 1.0)]
    for node, scale in queue:  # it grows meanwhile
        kind = type(node).__name__
        if kind in _LIKELIHOODS:
            _note(node, scale, frame)
        elif kind in _REDUCTIONS:
            _note_reduced(torch, node, scale, frame)
        elif kind in _SCALES or kind in _KEEPING:
            factor = _read_factor(torch, node, kind) if kind in _SCALES else 1.0
            if factor:
                queue += [(each, scale * factor) for each, _ in node.next_functions if each is not None][
                    : NODES - len(queue)
                ]


def _note(node: Any, scale: float, frame: FrameType) -> None:
    total = gathers.read_saved(node, "_raw_saved_total_weight")
    if total is None or total.numel() != 1:
        return
    count = float(total)
    if count <= 0 or count != count:
        return
    _write_row(count, scale / count if node._saved_reduction == _MEAN else scale, frame)


def _write_row(count: float, weight: float, frame: FrameType) -> None:
    _state.rows.append([count, float(f"{weight:.6g}")])
    if not _state.frames:
        _state.frames = frames.list_own(frame, _FRAMES)


def _note_reduced(torch: Any, node: Any, scale: float, frame: FrameType) -> None:
    """Note a sum or mean that the program takes of losses of each token, those that a mask leaves."""
    size = 1
    for each in getattr(node, "_saved_self_sym_sizes", None) or ():
        size *= int(each)
    weight = scale / size if type(node).__name__ == "MeanBackward0" and size else scale
    count = float(size)
    for _ in range(_BELOW):
        below = [each for each, _ in node.next_functions if each is not None]
        if len(below) != 1:
            return
        node = below[0]
        kind = type(node).__name__
        if kind in _EACH:
            if count > 0:
                _write_row(count, weight, frame)
            return
        if kind == "MulBackward0":
            mask = gathers.read_saved(node, "_raw_saved_other")
            if type(mask) is not torch.Tensor or mask.requires_grad or bool((mask * mask != mask).any()):
                return  # weights of another kind: advantages, classes
            count = float((mask != 0).sum())
        elif kind not in _CHOOSING and kind not in _KEEPING:
            return


def _read_factor(torch: Any, node: Any, kind: str) -> float:
    """Return by what a function multiplies the loss; 0 where that is no constant."""
    other = gathers.read_saved(node, "_raw_saved_other")
    if type(other) is not torch.Tensor or other.numel() != 1 or other.requires_grad:
        return 0.0
    value = float(other)
    return 0.0 if not value or value != value else 1 / value if kind == "DivBackward0" else value
