"""Wraps functions of torch so that the hook sees their calls: guarded, and hidden from torch's compiler."""

from __future__ import annotations

import sys

from . import journal, unseen
from .replacing import leave_uncompiled, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any


def guard(function: Callable[..., Any], otherwise: Any = None, lost: Any = None) -> Any:
    """Return a function that does the same until it raises: that is said, and from then on it does nothing.

    Args:
        function: Of ours, called from a frame of torch's or the program's.
        otherwise: What it returns where it does nothing.
        lost: Called once, where it has raised.
    """
    held: Callable[..., Any] | None = function

    def guarded(*args: Any) -> Any:
        nonlocal held
        if held is None:
            return otherwise
        try:
            return held(*args)
        except Exception as error:
            journal.failed(function.__name__, error)
            held = None
            if lost is not None:
                lost()
            return otherwise

    leave_uncompiled(guarded)
    return guarded


def wrap(owner: Any, name: str, before: Any = None, after: Any = None, plain: bool = False) -> None:
    """Call functions of ours when one of torch's is called, best one that does not raise: ours is in its traceback.

    Args:
        owner: Its module or class.
        name: Of it.
        before: Called before it with None, the caller's frame and the arguments by position.
        after: Called after it, with its result instead of None.
        plain: They ask nothing of subclasses of tensors, and are called in each step.
    """
    real = getattr(owner, name, None)
    if real is None:
        journal.trouble("patch", f"{getattr(owner, '__name__', owner)} has no {name}")
        return

    hide = unseen.behind_plain if plain else unseen.behind
    see_before = hide(before) if before is not None else None
    see_after = hide(after) if after is not None else None

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal see_before, see_after
        if see_before is not None:
            try:
                see_before(None, sys._getframe(1), args)
            except Exception as error:
                see_before = None  # it is taken out: what failed once would fail at each call
                journal.failed(name, error)
        result = real(*args, **kwargs)
        if see_after is not None:
            try:
                see_after(result, sys._getframe(1), args)
            except Exception as error:
                see_after = None
                journal.failed(name, error)
        return result

    skip_code(wrapper.__code__)
    replace(owner, name, wrapper)


def skip_code(code: CodeType) -> None:
    """Tell torch's compiler to leave a function alone, and those defined in it."""
    torch = sys.modules.get("torch._C")
    compiler: Any = getattr(getattr(torch, "_dynamo", None), "eval_frame", None)
    if hasattr(compiler, "skip_code"):
        compiler.skip_code(code)
    elif hasattr(compiler, "set_code_exec_strategy"):  # 2.7 and later
        actions = compiler._FrameAction
        compiler.set_code_exec_strategy(code, compiler._FrameExecStrategy(actions.SKIP, actions.DEFAULT))
    else:
        return
    for constant in code.co_consts:
        if hasattr(constant, "co_consts"):
            skip_code(constant)
