"""Scales of GradScaler, written down now and then, to be compared with other ranks' from beside.

They are read where the scaler makes the state of an optimizer's new step, in a function that does not raise,
before the scaler itself waits for what it found in the gradients.
"""

from __future__ import annotations

import sys
import weakref

from ..core import frames, journal, lifetime, wrapping
from ..models import prints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

EACH = 16
"""Steps between two looks, after the first so many, of which each is looked at."""
SCALERS = 8
_FRAMES = 8


class _Scaler:
    """What is remembered of one scaler."""

    def __init__(self, scaler: Any, number: int) -> None:
        self.ref = weakref.ref(scaler)
        self.number = number
        self.steps = 0
        self.written: float | None = None


_known: dict[int, _Scaler] = {}
_count = 0


def install() -> None:
    """See steps with a scaler begin."""
    wrapping.wrap(sys.modules.get("torch.amp.grad_scaler"), "_refresh_per_optimizer_state", before=_note_step)


def note_end() -> None:
    """Write down the scales that the program ends with, where nothing is to be waited for."""
    for entry in list(_known.values()):
        scaler = entry.ref()
        scale = getattr(scaler, "_scale", None)
        if scale is not None and prints.explain_busy() is None and prints.is_settled([scale]):
            _write(entry, entry.steps + 1, float(scale.item()), None, final=True)


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child starts anew."""
    global _count
    _known.clear()
    _count = 0


def _note_step(_: Any, frame: FrameType, args: Any) -> None:
    scaler = frame.f_locals.get("self")
    if scaler is None or getattr(scaler, "_per_optimizer_states", True):
        return  # another optimizer of the same step
    entry = _meet(scaler)
    if entry is None:
        return
    entry.steps = step = entry.steps + 1
    whole = not step & (step - 1)
    if step > EACH and step % EACH and not whole:
        return
    scale = getattr(scaler, "_scale", None)
    if scale is None or prints.explain_busy() is not None:
        return
    value = float(scale.item())
    if whole or value != entry.written:
        _write(entry, step, value, frame)


def _meet(scaler: Any) -> _Scaler | None:
    global _count
    entry = _known.get(id(scaler))
    if entry is not None and entry.ref() is scaler:
        return entry
    for key, each in list(_known.items()):
        if each.ref() is None:
            del _known[key]
    if _count >= SCALERS:
        return None
    _count += 1
    entry = _known[id(scaler)] = _Scaler(scaler, _count)
    return entry


def _write(entry: _Scaler, step: int, value: float, frame: FrameType | None, final: bool = False) -> None:
    entry.written = value
    journal.write(
        "scale",
        {
            "number": entry.number,
            "step": step,
            "value": value,
            "final": final,
            "frames": frames.list_own(frame if step == 1 else None, _FRAMES),
        },
    )
