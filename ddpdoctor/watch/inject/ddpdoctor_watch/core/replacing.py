"""Replaces functions of the interpreter, the standard library and torch by wrappers that look like them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

replaced: list[tuple[object, str, object, object]] = []
"""Owner, name, original and wrapper of everything that was replaced, so that its cost can be measured in one process
with it and without it (benchmarks/switching.py)."""


def leave_uncompiled(function: Any) -> None:
    """Mark a function as torch.compiler.disable does: else the compiler traces what is called below a compiled one."""
    function._torchdynamo_disable = True


def replace(owner: object, name: str, wrapper: Any) -> None:
    """Put a wrapper in the place of a function, looking like it as far as Python lets it.

    Args:
        owner: Module or class.
        name: The function's name in it.
        wrapper: What takes its place; pickles by reference as the original would.
    """
    original = getattr(owner, name)
    for attribute in ("__name__", "__qualname__", "__doc__"):
        value = getattr(original, attribute, None)
        if value is not None:
            setattr(wrapper, attribute, value)
    wrapper.__module__ = getattr(owner, "__name__", None) if not isinstance(owner, type) else owner.__module__
    if str(wrapper.__module__).partition(".")[0] == "torch":
        leave_uncompiled(wrapper)
    setattr(owner, name, wrapper)
    replaced.append((owner, name, original, wrapper))
