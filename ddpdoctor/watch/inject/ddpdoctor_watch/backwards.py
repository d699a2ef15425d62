"""Backwards: how many a rank makes, and the first loss that is not finite, on the rank where it is.

After the backward it is too late: the all-reduce has carried the NaN to all. So the loss is looked at where
``torch.autograd.backward`` is about to begin, in a function that it calls and that does not raise; what turns in the
backward itself is seen by `gradients`.
"""

from __future__ import annotations

import sys
import time

from . import budget, clocks, ddp, finite, gathers, gradients, hooks, loaders, prints, steps, syncs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

_EACH = 64
"""Of so many calls the time of one is taken."""
_SAMPLES = 16


class _Losses:
    """Of this process."""

    def __init__(self) -> None:
        self.count = 0
        self.numbers = finite.Finite(what="loss")
        self.place = (0, 0)
        self.index = 0


_losses = _Losses()
_tensor: Any = None
"""Torch's class of plain tensors."""


def install() -> None:
    """See backwards begin."""
    global _tensor
    _tensor = sys.modules["torch"].Tensor
    syncs.install()
    hooks.wrap(
        sys.modules.get("torch.autograd"), "_tensor_or_tensors_to_tuple", before=_note_backward, plain=True
    )


def count() -> int:
    """Return how many backwards were begun."""
    return _losses.count


def describe() -> dict[str, object]:
    """Return where the program is: steps that were made, and what its loader has given."""
    place, epoch = _losses.place
    batch, samples = loaders.latest()
    return {
        "step": steps.count_steps() + 1,
        "loader": place,
        "epoch": epoch,
        "index": batch or _losses.index,
        "indices": samples[:_SAMPLES],
        "wrappers": sorted(ddp.forwards),
    }


def note_end() -> None:
    """Write down how many backwards there were, and whether the last numbers were finite."""
    if _losses.count:
        _losses.numbers.note_end(_losses.count)
        gradients.note_end(_losses.count)


def after_fork() -> None:
    """A forked child counts anew."""
    global _losses
    _losses = _Losses()


def _note_backward(_: Any, frame: FrameType, args: Any) -> None:
    seen = frame.f_locals
    if "grad_tensors" not in seen:
        return  # not torch.autograd.backward
    clocks.begin_backward()
    state = _losses
    state.count = number = state.count + 1
    began = time.monotonic_ns() if not number % _EACH else 0
    place = loaders.current()
    if place != state.place:
        state.place, state.index = place, 0
    state.index += 1
    numbers = state.numbers
    if numbers.under_way:
        numbers.read()
    syncs.note_backward(frame)
    busy = prints.explain_busy() is not None
    gradients.note_backward(busy)
    if not busy:
        given = seen.get("tensors")
        if type(given) is tuple and len(given) == 1:
            _look(state, given[0], frame)
            gathers.note_backward(given[0])
    if began:
        budget.spend(time.monotonic_ns() - _EACH * (time.monotonic_ns() - began))


def _look(state: _Losses, loss: Any, frame: FrameType) -> None:
    if type(loss) is not _tensor or loss.numel() != 1:
        return
    numbers = state.numbers
    if loss.is_cpu:
        value = loss.item()
        if type(value) is not float:
            return
        if numbers.since or value - value != 0:
            numbers.judge(state.count, value, describe(), frame)
        else:
            numbers.checked += 1
    elif loss.is_cuda and loss.is_floating_point():
        torch: Any = sys.modules["torch"]
        if loss.dtype is not torch.float64:
            numbers.send(state.count, loss, describe(), torch)
