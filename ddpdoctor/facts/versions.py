"""What differs between versions of torch, asked of the torch that is there and never of its number.

Code that calls what some versions lack, or passes what some do not take, asks with these functions. The names are
beside their use; tests/facts/torch_surface.json lists them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CodeType, ModuleType
    from typing import Any


NEWEST = (2, 15)
"""The newest torch that this was tried with."""


def describe_untried(version: str | None) -> str | None:
    """Return a sentence where a torch is newer than what was tried; the only question that a number answers."""
    numbers = str(version or "").split("+")[0].split(".")[:2]
    if len(numbers) < 2 or not all(each.isdigit() for each in numbers):
        return None
    if (int(numbers[0]), int(numbers[1])) <= NEWEST:
        return None
    tried = ".".join(map(str, NEWEST))
    return (
        f"torch {version} is newer than the newest release that ddpdoctor was tested with ({tried}): checks "
        "that depend on removed interfaces are listed as inconclusive"
    )


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a callable takes an argument of that name; no, where it does not say what it takes.

    ``**kwargs`` that are only handed on take nothing by themselves: of a class that says no more, the bases are asked.
    """
    import inspect  # torch has imported it.

    for each in function.__mro__ if isinstance(function, type) else (function,):
        target = vars(each).get("__init__") if isinstance(each, type) else each
        if target is None:
            continue
        try:
            parameters = inspect.signature(target).parameters.values()
        except (TypeError, ValueError):
            return False
        if any(p.name == name and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters):
            return True
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return False
    return False


def pick_taken(function: Callable[..., Any], **settings: Any) -> dict[str, Any]:
    """Return those arguments that a callable takes; the others are its older versions' to do without."""
    return {name: value for name, value in settings.items() if takes(function, name)}


def choose_text(texts: Iterable[str], module: ModuleType, code: CodeType) -> str | None:
    """Return the text that asks of ``module`` the names that a function in it asks of it; None where none does.

    Args:
        texts: Python source that asks ``module.NAME``; each written after one form of the function.
        module: of torch.
        code: of the function as it is there.
    """
    import re  # torch has imported it.

    asked = {name for name in code.co_names if name in vars(module) and not name.startswith("__")}
    return next((text for text in texts if set(re.findall(r"\bmodule\.(\w+)", text)) == asked), None)
