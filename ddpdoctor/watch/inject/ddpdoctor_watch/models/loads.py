"""Checkpoints that were loaded into models, seen at the end of load_state_dict, in a function that does not raise.

Two kinds are written down: those of which nothing went into the model, because each name has a prefix that the model
has not (with ``strict=False`` torch says so in what load_state_dict returns, and few programs look at it), and those
that went into an optimizer, or into a model after DistributedDataParallel had made it equal on all ranks.
"""

from __future__ import annotations

import sys
import weakref

from ..core import describe, frames, journal, lifetime
from . import ddp, prints, saved_states, tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, ModuleType
    from typing import Any

PREFIXES = ("module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.")
"""That DistributedDataParallel, torch.compile and both put before the names of a model."""
LOADS = 20
"""Most loads of a process that are written down."""
PRINTED = 256
"""Most parameters whose values are written down, folded to one number."""
_FRAMES = 8
_DEPTH = 4
"""Frames between load_state_dict of an optimizer and where it is seen."""

_failed: list[tuple[Any, int]] = []
"""Modules (weakly) into which nothing went, and the numbers of their events."""
_count = 0
_restores = 0
"""Loads into optimizers and into models that were wrapped."""


def patch_module(module: ModuleType) -> None:
    """See what load_state_dict has found missing and unexpected."""
    result = getattr(module, "_IncompatibleKeys", None)
    if result is None:
        journal.trouble("patch", "torch.nn.modules.module has no _IncompatibleKeys")
        return
    make = result.__new__

    def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            frame = sys._getframe(1)
            if frame.f_code.co_name == "load_state_dict":
                _note_load(frame)
        except Exception as error:
            journal.failed("loads", error)
        return make(cls, *args, **kwargs)

    result.__new__ = __new__


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child starts anew."""
    global _count, _restores
    _failed.clear()
    _count = _restores = 0


def _note_load(frame: FrameType) -> None:
    global _count
    seen = frame.f_locals
    module, given = seen["self"], seen["state_dict"]
    missing, unexpected = seen["missing_keys"], seen["unexpected_keys"]
    if saved_states.files:
        saved_states.note_load(module, given, not missing and not unexpected, frame.f_back)
    if len(unexpected) < len(given):
        _heal(module)
        _note_restore(module, frame)
        return
    prefix, extra = _find_prefix(missing, unexpected)
    if not prefix or _count >= LOADS:
        return
    _count += 1
    _failed.append((weakref.ref(module), _count))
    journal.write(
        "load",
        {
            "number": _count,
            "class": describe.name_type(type(module)),
            "prefix": prefix,
            "extra": extra,
            "name": str(unexpected[0])[:200],
            "count": len(unexpected),
            "frames": frames.list_own(frame.f_back, _FRAMES),
        },
    )


def note_optimizer(optimizer: Any, frame: FrameType | None) -> None:
    """Called where an optimizer is made, or gets a state: says so where that is load_state_dict."""
    for _ in range(_DEPTH):
        if frame is None or frame.f_code.co_name == "load_state_dict":
            break
        frame = frame.f_back
    else:
        return
    if frame is not None:
        _write_restore(0, optimizer, "", frame)


def _note_restore(module: Any, frame: FrameType) -> None:
    """A state dict went into a model that was wrapped before: the ranks must all do it, with the same values."""
    number = next((number for number, wrapper in ddp.list_wrappers() if _holds(wrapper, module)), 0)
    if not number or _restores >= LOADS:
        return
    tensors = [each for _, each in tree.list_parameters(module)[:PRINTED]]
    held = prints.fold(prints.measure(tensors)) if prints.explain_busy() is None else ""
    _write_restore(number, tree.find_model(module) if ddp.number(module) else module, held, frame)


def _write_restore(number: int, target: Any, held: str, frame: FrameType) -> None:
    global _restores
    if _restores >= LOADS:
        return
    _restores += 1
    journal.write(
        "restored",
        {
            "wrapper": number,
            "forwards": sum(ddp.count_forwards(number)[:2]),
            "class": describe.name_type(type(target)),
            "print": held,
            "frames": frames.list_own(frame.f_back, _FRAMES),
        },
    )


def _find_prefix(missing: list[str], unexpected: list[str]) -> tuple[str, bool]:
    """Return the prefix with which most names would fit, and whether the checkpoint's have it; empty where none is."""
    wanted = set(missing)
    for prefix in PREFIXES:
        bare = [key[len(prefix) :] for key in unexpected if key.startswith(prefix)]
        if 2 * sum(key in wanted for key in bare) >= len(unexpected) > 0:
            return prefix, True
        if 2 * sum(prefix + key in wanted for key in unexpected) >= len(unexpected) > 0:
            return prefix, False
    return "", False


def _heal(module: Any) -> None:
    """Something was loaded into a module: what was not loaded into it, or a part of it, before has come after all."""
    for entry in list(_failed):
        reference, number = entry
        known = reference()
        if known is None or known is module or _holds(known, module) or _holds(module, known):
            _failed.remove(entry)
            if known is not None:
                journal.write("loaded", {"number": number})


def _holds(module: Any, part: Any) -> bool:
    return any(each is part for _, each in tree.list_modules(module))
