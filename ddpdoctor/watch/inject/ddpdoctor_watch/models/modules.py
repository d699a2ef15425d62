"""Which modules run, in the steps that are looked at and no others: to see them costs each of their calls.

It tells which of them ran, whether within a forward of DistributedDataParallel, and which belong to no wrapper.
"""

from __future__ import annotations

import sys
import weakref

from ..core import budget, describe, frames, lifetime
from . import ddp, running, tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any

START, EVALUATION = 0, -1
"""Among the numbers of optimizers that want to see modules: the first step, and the beginning of an evaluation."""
ROOTS = 8
"""Models without a wrapper that are looked at."""
_FRAMES = 8

take_batch: Callable[[int, FrameType], object] | None = None
"""Called for each training call of a model without a wrapper: with its number, below zero, and the frame."""
take_evaluation: Callable[[int, FrameType], object] | None = None
"""Called where a wrapped model in evaluation mode is called without its wrapper: with the number of the wrapper."""


class _State:
    """Modules of this process: those that were called, those that ran, and who wants to see them."""

    def __init__(self) -> None:
        self.wanted: set[int] = set()
        self.roots: list[Any] = []
        self.entries: list[Any] = []
        """Frames of the first call of each root."""
        self.owners: dict[int, int] = {}
        """Module -> number of the wrapper that it is a part of; -1: of a model without one."""
        self.ran: set[int] = set()
        self.bypassed: dict[int, dict[str, object]] = {}


_state = _State()


def open_window(number: int) -> None:
    """See which modules run until the step that is looked at, or whoever else wants to see them has seen enough."""
    if budget.level in (budget.OFF, budget.LIGHT) or ddp.is_compiling():
        return
    others = bool(_state.wanted)
    _state.wanted.add(number)
    if number == EVALUATION and others:
        return  # what they have seen so far is to stay
    _state.ran.clear()
    _state.bypassed.clear()
    _state.owners = {id(module): -1 for root in list_roots() for _, module in tree.list_modules(root)}
    for number, wrapper in ddp.list_wrappers():
        for _, module in tree.list_modules(tree.find_model(wrapper)):
            _state.owners[id(module)] = number
    if not running.listen(_note_module):
        _state.wanted.clear()
        budget.abstain("module calls can no longer be observed")


def is_open() -> bool:
    """Whether anybody wants to see modules."""
    return bool(_state.wanted)


def close_window(number: int) -> None:
    """Look at modules no longer, where nobody else wants to."""
    _state.wanted.discard(number)
    _state.wanted.discard(START)
    if not _state.wanted:
        running.stop(_note_module)


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child starts anew."""
    global _state
    _state = _State()


def list_roots() -> list[Any]:
    """Return the living models that were seen to run without a wrapper."""
    found = [ref() for ref in _state.roots]
    return [each for each in found if each is not None]


def list_companions(owned: set[int]) -> list[tuple[int, Any, Any]]:
    """Return the models without a wrapper that ran since the window was opened and that nobody trains.

    Args:
        owned: Ids of the parameters of all optimizers.

    Returns:
        Number, model, and frames of its first call.
    """
    found = []
    for place, (ref, entry) in enumerate(zip(_state.roots, _state.entries)):
        model = ref()
        if model is None or id(model) not in _state.ran:
            continue
        parameters = tree.list_parameters(model)
        if parameters and not any(id(each) in owned for _, each in parameters):
            found.append((1 + place, model, entry))
    return found


def has_seen() -> bool:
    """Whether modules ran since the window was opened, and were seen to."""
    return bool(_state.ran) and not ddp.is_compiling()


def list_idle(parameters: list[Any]) -> list[int]:
    """Return the places of parameters whose module did not run since the window was opened."""
    owner_of: dict[int, int] = {}
    for _, wrapper in ddp.list_wrappers():
        for _, module in tree.list_modules(tree.find_model(wrapper)):
            for _, each in tree.list_own(module):
                owner_of.setdefault(id(each), id(module))
    return [
        place
        for place, each in enumerate(parameters)
        if id(each) in owner_of and owner_of[id(each)] not in _state.ran
    ]


def explain_bypass(number: int) -> dict[str, object] | None:
    """Return which part of a wrapped model ran in training outside of the wrapper's forward, and where from."""
    return _state.bypassed.get(number)


def leave_compiled() -> None:
    """Look at modules no longer where torch.compile is in use: what is compiled is not called."""
    if _state.wanted and ddp.is_compiling():
        _leave()


def _leave() -> None:
    budget.abstain("torch.compile: modules are not sampled")
    for number in list(_state.wanted):
        close_window(number)


def _note_module(module: Any, frame: FrameType) -> None:
    _state.ran.add(id(module))
    if ddp.inside or ddp.number(module):
        return
    number = _state.owners.get(id(module))
    if number is None:
        _meet_root(module, frame)
    elif number < 0:
        _take_batch(module, frame)
    elif not module.training:
        if take_evaluation is not None:
            take_evaluation(number, frame)
    elif sys.modules["torch"].is_grad_enabled():
        _note_bypass(number, module, frame)


def _meet_root(module: Any, frame: FrameType) -> None:
    """Take a module that is part of none that is known: a model of its own, or one that was wrapped since."""
    if type(module).__name__ == "OptimizedModule":
        _leave()
        return
    for number, wrapper in ddp.list_wrappers():
        for _, each in tree.list_modules(tree.find_model(wrapper)):
            _state.owners.setdefault(id(each), number)
    if id(module) in _state.owners:
        _note_module(module, frame)
        return
    for _, each in tree.list_modules(module):
        _state.owners.setdefault(id(each), -1)
    if len(_state.roots) < ROOTS:
        _state.roots.append(weakref.ref(module))
        _state.entries.append(frames.list_own(frame, _FRAMES))
        _take_batch(module, frame)


def _take_batch(module: Any, frame: FrameType) -> None:
    if not (module.training and sys.modules["torch"].is_grad_enabled()):
        return
    for place, ref in enumerate(_state.roots):
        if ref() is module and take_batch is not None:
            take_batch(-1 - place, frame)


def _note_bypass(number: int, module: Any, frame: FrameType | None) -> None:
    """Remember that a part of a wrapped model ran in training, but not within the wrapper's forward."""
    if number in _state.bypassed:
        return
    codes = _list_codes(number)
    outside = frame
    while outside is not None and (outside.f_code in codes or not frames.is_own(outside)):
        outside = outside.f_back
    _state.bypassed[number] = {
        "module": describe.name_type(type(module)),
        "frames": frames.list_own(outside, _FRAMES) or frames.list_own(frame, _FRAMES),
    }


def _list_codes(number: int) -> set[CodeType]:
    """Return the code of the methods of a wrapped model: what called these is what goes around the wrapper.

    A frame is not asked for its `self`: with its variables it would keep alive what the program deletes.
    """
    kinds = {
        base
        for key, wrapper in ddp.list_wrappers()
        for _, module in tree.list_modules(tree.find_model(wrapper))
        for base in type(module).__mro__
        if key == number
    }
    methods = (getattr(value, "__func__", value) for kind in kinds for value in vars(kind).values())
    codes = (getattr(method, "__code__", None) for method in methods if not isinstance(method, type))
    return {code for code in codes if code is not None}
