"""Optimizers that begin anew on a model whose checkpoint holds the state of an optimizer.

`torch.distributed.checkpoint` reads what a checkpoint holds before it loads what was asked for: both are known where a
plan is set up. Whose parameters were loaded is known by their memory, which a sharded state dict shares with the model.
What torch.load reads is kept by `saved_states`. Nothing is looked at where no checkpoint is loaded.
"""

from __future__ import annotations

import weakref

from ..core import describe, frames, journal, lifetime, wrapping
from . import saved_states

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, ModuleType
    from typing import Any

LOADS = 8
"""Most loads of a process that are remembered at a time."""
_TENSORS = 2000
_FRAMES = 8
_GROUPS, _STATE = "param_groups", "state."
"""What the names of an optimizer's state hold, after the name under which it was saved."""

waiting: list[_Load] = []
"""Loads of models whose optimizers have not been seen to step."""
_told: dict[str, list[int]] = {}
"""Name of an optimizer's state -> numbers of the events that say that it was left where it was."""
_begun: list[tuple[Any, int]] = []
"""Optimizers (weakly) that began anew on the model of a file, and the numbers of their events."""
_count = 0


class _Load:
    """A checkpoint that holds more than was asked for: the state of optimizers."""

    def __init__(self, left: list[str], counter: str, memory: set[int], stack: list[list[object]]) -> None:
        self.left = left
        self.counter = counter
        self.memory = memory
        self.stack = stack


def patch_planner(module: ModuleType) -> None:
    """See what distributed checkpoints hold, and what of it is loaded."""
    wrapping.wrap(module.DefaultLoadPlanner, "set_up_planner", after=_note_plan)


def is_waiting() -> bool:
    """Whether a model was loaded from a checkpoint that holds more."""
    return bool(waiting or saved_states.restored)


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child starts anew."""
    global _count
    waiting.clear()
    _told.clear()
    _begun.clear()
    _count = 0


def _note_plan(_: Any, frame: FrameType, args: tuple[Any, ...]) -> None:
    planner = args[0]
    held = getattr(planner.metadata, "state_dict_metadata", None)
    asked = planner.state_dict
    if not held or not asked:
        return
    saved = find_optimizers(list(held))
    # A new optimizer's own state_dict has settings only: nothing of the state that was saved is then asked for.
    taken = [name for name in saved if any(key.startswith(name + _STATE) for key in asked)]
    for name in taken:
        for number in _told.pop(name, ()):
            journal.write("resumed", {"number": number})
    for load in waiting:
        load.left = [name for name in load.left if name not in taken]
    left = [name for name in saved if name not in taken]
    memory = {place for value in list(asked.values())[:_TENSORS] if (place := find_memory(value))}
    if left and memory and len(waiting) < LOADS:
        waiting.append(
            _Load(left, _find_counter(held, asked, saved), memory, frames.list_own(frame, _FRAMES))
        )


def find_optimizers(names: list[str]) -> list[str]:
    """Return what the names of each optimizer's state begin with, of those in a checkpoint.

    ``Optimizer.state_dict`` and ``get_optimizer_state_dict`` both have ``state`` and ``param_groups`` side by side.
    One without any state (SGD without momentum) is none.
    """
    starts = {
        name[:at] for name in names if (at := name.find(_GROUPS)) >= 0 and (not at or name[at - 1] == ".")
    }
    return sorted(start for start in starts if any(name.startswith(start + _STATE) for name in names))


def _find_counter(held: Any, asked: Any, saved: list[str]) -> str:
    """Return the name of a number or the like that is loaded as well: it counts steps or epochs, or is a schedule's."""
    for name in asked:
        plain = type(held.get(name)).__name__ == "BytesStorageMetadata" and not name.endswith("_extra_state")
        if plain and not any(name.startswith(start) for start in saved):
            return str(name)[:200]
    return ""


def find_memory(value: Any) -> int:
    """Return where a tensor, or this rank's piece of it, lies; 0 where it has nothing or cannot be asked."""
    local = getattr(value, "_local_tensor", value)
    storage = getattr(local, "untyped_storage", None)
    try:
        return int(storage().data_ptr()) if storage is not None else 0
    except RuntimeError:  # a meta tensor or a wrapper subclass has no storage
        return 0


def note_first_step(optimizer: Any, frame: FrameType | None) -> None:
    """Called before the first step of an optimizer; says whether it begins anew on a model that was loaded."""
    if any(optimizer.state.values()) or _has_no_state(optimizer):
        return
    memory = {
        find_memory(each) for group in optimizer.param_groups for each in group["params"][:_TENSORS]
    } - {0}
    for load in list(waiting):
        if not load.left or not memory & load.memory:
            continue
        waiting.remove(load)
        number = _write(optimizer, [name.rstrip(".") for name in load.left], load.counter, load.stack, frame)
        for name in load.left:
            _told.setdefault(name, []).append(number)
    found = saved_states.take_restored(optimizer)
    if found is not None:
        names = [each.name for each in found.file.optimizers if each.fits(optimizer)]
        counter = found.file.find_counter(optimizer, frame)
        _begun.append((weakref.ref(optimizer), _write(optimizer, names, counter, found.stack, frame)))


def note_state(optimizer: Any) -> None:
    """Say that what began anew has its state after all; `set_optimizer_state_dict` steps it once before."""
    for entry in list(_begun):
        known, number = entry
        if known() is optimizer:
            _begun.remove(entry)
            journal.write("resumed", {"number": number})


def _write(
    optimizer: Any, names: list[str], counter: str, stack: list[list[object]], frame: FrameType | None
) -> int:
    """Write down that an optimizer begins anew; return the number of the event."""
    global _count
    _count += 1
    journal.write(
        "resume",
        {
            "number": _count,
            "class": describe.name_type(type(optimizer)),
            "names": [name[:200] for name in names[:4]],
            "counter": counter,
            "frames": stack,
            "step_frames": frames.list_own(frame, _FRAMES),
        },
    )
    return _count


def _has_no_state(optimizer: Any) -> bool:
    """Whether it never has any: SGD without momentum."""
    return all(not group.get("momentum", 1) for group in optimizer.param_groups) and "SGD" in str(
        type(optimizer).__name__
    )
