"""Backwards: how many a rank makes, and the first loss that is not finite, on the rank where it is.

After the backward it is too late: the all-reduce has carried the NaN to all. So the loss is looked at where
``torch.autograd.backward`` is about to begin, in a function that it calls and that does not raise; what turns in the
backward itself is seen by `gradients`.
"""

from __future__ import annotations

import sys

from ..calls import ring
from ..core import budget, lifetime, progress, stopwatch, wrapping
from ..models import modules, prints
from . import clocks, finite, gathers, gradients, losses, places, reference, scaling, syncs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

_EACH = 64
"""One of so many backwards is timed, and its cost counts for all of them."""


_took = 0
"""What the backward that was timed last has cost."""
_numbers = finite.Finite({"what": "loss"})
"""Losses of this process."""
_tensor: Any = None
"""Torch's class of plain tensors."""


def install() -> None:
    """See backwards begin."""
    global _tensor
    _tensor = sys.modules["torch"].Tensor
    syncs.install()
    wrapping.wrap(
        sys.modules.get("torch.autograd"), "_tensor_or_tensors_to_tuple", before=_note_backward, plain=True
    )


def note_end() -> None:
    """Write down how many backwards there were, and whether the last numbers were finite."""
    if progress.backwards:
        _numbers.note_end(progress.backwards)
        gradients.note_end(progress.backwards)


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child counts anew."""
    global _numbers
    _numbers = finite.Finite({"what": "loss"})


def _note_backward(_: Any, frame: FrameType, args: Any) -> None:
    global _took
    seen = frame.f_locals
    if "grad_tensors" not in seen:
        return  # not torch.autograd.backward
    rests = stopwatch.state.resting
    if not rests:
        clocks.begin_backward()
    ring.begin_round()
    places.note_backward()
    began = budget.clock() if not progress.backwards % _EACH else 0
    if _numbers.under_way:
        _numbers.read()
    syncs.note_backward(frame)
    busy = prints.explain_busy() is not None
    gradients.note_backward(busy or rests != 0)
    if not busy:
        given = seen.get("tensors")
        if type(given) is tuple and len(given) == 1:
            loss = given[0]
            _look(loss, frame)
            if gathers.state.pending:
                gathers.look_through(loss)
            if modules.is_open():
                losses.note_backward(loss, frame)
                scaling.note_backward(loss, frame)
            if reference.enabled:
                reference.note_backward(loss)
    if began:
        _took = budget.spend_for(_EACH, began, _took)


def _look(loss: Any, frame: FrameType) -> None:
    if type(loss) is not _tensor or loss.numel() != 1:
        return
    numbers = _numbers
    if loss.is_cpu:
        value = loss.item()
        if type(value) is not float:
            return
        if numbers.since or value - value != 0:
            numbers.judge(progress.backwards, value, places.describe(), frame)
        else:
            numbers.checked += 1
    elif loss.is_cuda and loss.is_floating_point():
        torch: Any = sys.modules["torch"]
        if loss.dtype is not torch.float64:
            numbers.send(progress.backwards, loss, places.describe(), torch)
