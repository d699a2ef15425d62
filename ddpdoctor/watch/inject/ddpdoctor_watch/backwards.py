"""Backwards: how many a rank makes, and the first loss that is not finite, on the rank where it is.

After the backward it is too late: the all-reduce has carried the NaN to all. So the loss is looked at where
``torch.autograd.backward`` is about to begin, in a function that it calls and that does not raise. On the CPU
its value is read; on a GPU it is copied to the host beside the work that is queued, and read some backwards
later: nothing is waited for.
"""

from __future__ import annotations

import math
import sys
import time

from . import budget, ddp, frames, hooks, journal, loaders, prints, steps, syncs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

RUNS = 20
"""Runs of losses that are not finite of which the beginning is written down."""
SLOTS = 64
"""Losses of a GPU that are under way to the host at a time."""
_MARK = -1.1754943508222875e-38
"""In a slot that nothing has reached yet: the smallest normal number of 32 bits, which no loss is."""
_EACH = 64
"""Of so many calls the time of one is taken."""
_SAMPLES = 16
_FRAMES = 8


class _Losses:
    """Of this process."""

    def __init__(self) -> None:
        self.count = 0
        self.checked = 0
        self.runs = 0
        self.bad = 0
        self.since = 0
        self.slots: Any = None
        self.under_way: list[tuple[int, int, dict[str, object]]] = []
        self.place = (0, 0)
        self.index = 0


_losses = _Losses()


def install() -> None:
    """See backwards begin."""
    hooks.wrap(sys.modules.get("torch.autograd"), "_tensor_or_tensors_to_tuple", before=_note_backward)


def count() -> int:
    """Return how many backwards were begun."""
    return _losses.count


def note_end() -> None:
    """Write down how many backwards there were, and whether the last loss was finite."""
    state = _losses
    if not state.count:
        return
    if state.slots is not None:
        _read_slots(state)
    journal.write(
        "losses",
        {"count": state.count, "checked": state.checked, "bad": state.bad, "since": state.since},
    )


def after_fork() -> None:
    """A forked child counts anew."""
    global _losses
    _losses = _Losses()


def _note_backward(_: Any, frame: FrameType, args: Any) -> None:
    if frame.f_code.co_name != "backward":
        return
    state = _losses
    state.count += 1
    began = time.monotonic_ns() if not state.count % _EACH else 0
    place = loaders.current()
    if place != state.place:
        state.place, state.index = place, 0
    state.index += 1
    if state.slots is not None:
        _read_slots(state)
    syncs.note_backward(frame)
    given = frame.f_locals.get("tensors")
    if type(given) is tuple and len(given) == 1 and prints.explain_busy() is None:
        _look(state, given[0], frame)
    if began:
        budget.spend(time.monotonic_ns() - _EACH * (time.monotonic_ns() - began))


def _look(state: _Losses, loss: Any, frame: FrameType) -> None:
    torch: Any = sys.modules["torch"]
    if type(loss) is not torch.Tensor or loss.numel() != 1 or not loss.is_floating_point():
        return
    kind = loss.device.type
    if kind == "cpu":
        _judge(state, state.count, loss.item(), None, frame)
    elif kind == "cuda":
        _send(state, loss, torch)


def _send(state: _Losses, loss: Any, torch: Any) -> None:
    """Let the loss be copied to the host, after what is queued before it."""
    if len(state.under_way) >= SLOTS or loss.dtype is torch.float64:
        return
    if state.slots is None:
        state.slots = torch.full((SLOTS,), _MARK, dtype=torch.float32, pin_memory=True)
    used = {slot for slot, _, _ in state.under_way}
    slot = next(each for each in range(SLOTS) if each not in used)
    state.slots[slot] = _MARK
    state.slots[slot].copy_(loss.detach().reshape(()), non_blocking=True)
    state.under_way.append((slot, state.count, _describe(state)))


def _read_slots(state: _Losses) -> None:
    """Judge the losses that have arrived, in their order."""
    while state.under_way:
        slot, number, told = state.under_way[0]
        value = state.slots[slot].item()
        if value == _MARK:
            return
        del state.under_way[0]
        _judge(state, number, value, told, None)


def _judge(
    state: _Losses, number: int, value: float, told: dict[str, object] | None, frame: FrameType | None
) -> None:
    state.checked += 1
    if math.isfinite(value):
        if state.since:
            state.since = 0
            if state.runs <= RUNS:
                journal.write("finite", {"number": number})
        return
    state.bad += 1
    if state.since:
        return
    state.since = number
    state.runs += 1
    if state.runs > RUNS:
        return
    journal.write(
        "nonfinite",
        {
            "number": number,
            "value": str(value),
            **(told if told is not None else _describe(state)),
            "frames": frames.list_own(frame, _FRAMES),
        },
    )


def _describe(state: _Losses) -> dict[str, object]:
    """Return where the program is: steps that were made, and what its loader has given."""
    place, epoch = state.place
    batch, samples = loaders.latest()
    return {
        "step": steps.count_steps() + 1,
        "loader": place,
        "epoch": epoch,
        "index": batch or state.index,
        "indices": samples[:_SAMPLES],
        "wrappers": sorted(ddp.forwards),
    }
