"""The door between the program and what we do with its tensors: no mode, subclass, profile or compiler sees behind it.

`behind` is put around each function of ours that asks a tensor anything or computes with one. What it does is for this
thread alone, and over when the function returns.
"""

from __future__ import annotations

import sys
from _thread import _local

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_inside: Any = _local()
_tools: tuple[Any, ...] = ()
"""Torch's own tools, in this order: what turns modes of functions off; what turns modes below them off; what counts the
latter; what turns recording off and on; what reads and what sets the compiler's callback; what counts modes of
functions."""


def behind(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does the same unseen.

    It must not call anything of the program's.
    """

    def wrapper(*args: Any) -> Any:
        tools = _tools or _find_tools()
        if not tools or getattr(_inside, "value", False):
            return function(*args)
        functions_off, modes_off, count_modes, record, read_callback, set_callback, _ = tools
        callback = read_callback()
        if callback is not None:
            set_callback(None)  # else the compiler takes each function that runs below a compiled one
        try:
            _inside.value, _inside.callback = True, callback
            record(False)
            with functions_off():
                if not count_modes():
                    return function(*args)
                with modes_off():
                    return function(*args)
        finally:
            _inside.value = False
            record(not getattr(_inside, "plain", False))
            if callback is not None:
                set_callback(callback)

    return wrapper


def behind_plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Do as `behind` does, for less, of a function that asks nothing of subclasses of tensors.

    Where no mode and no compiler is at work, recording is all that is to be turned off.
    """
    hidden = behind(function)

    def wrapper(*args: Any) -> Any:
        tools = _tools
        if not tools or tools[2]() or tools[6]() or tools[4]() is not None:  # as `find_record` asks
            return hidden(*args)
        record = tools[3]
        record(False)
        try:
            _inside.plain = True  # what is `behind` in it does not turn recording on
            return function(*args)
        finally:
            _inside.plain = False
            record(True)

    return wrapper


def find_record() -> Any:
    """Return what turns recording off and on, where that is all there is to hide from; None where it is not."""
    tools = _tools
    if not tools or tools[2]() or tools[6]() or tools[4]() is not None:
        return None
    return tools[3]


def is_compiled() -> bool:
    """Whether what the program runs now is below a frame that torch.compile has compiled, or is to."""
    tools = _tools or _find_tools()
    return bool(_inside.callback if getattr(_inside, "value", False) else tools and tools[4]())


def _find_tools() -> tuple[Any, ...]:
    """Find what hides us, each by attribute; what this torch does not have is not done."""
    global _tools
    core: Any = sys.modules.get("torch._C")
    if core is None:
        return ()
    compiler = getattr(getattr(core, "_dynamo", None), "eval_frame", None)
    set_callback = getattr(compiler, "set_eval_frame", None)
    _tools = (
        core.DisableTorchFunction,
        getattr(core, "_DisableTorchDispatch", core.DisableTorchFunction),
        getattr(core, "_len_torch_dispatch_stack", _give_none),
        getattr(getattr(core, "_autograd", None), "_enable_record_function", _give_none),
        getattr(compiler, "get_eval_frame_callback", _give_none) if set_callback is not None else _give_none,
        set_callback,
        getattr(core, "_len_torch_function_stack", _give_true),
    )
    return _tools


def _give_none(*args: Any) -> None:
    """Stand in for what this torch does not have."""


def _give_true() -> bool:
    """Stand in for what this torch cannot tell."""
    return True
