"""The parts of a model, read from where torch keeps them: no method that the program may have overridden is called."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


def find_model(wrapper: Any) -> Any:
    """Return the module that a DistributedDataParallel wraps."""
    return vars(wrapper)["_modules"]["module"]


def list_modules(root: Any) -> list[tuple[str, Any]]:
    """Return all modules of a model, itself first, each once, with the names that torch gives them."""
    found: list[tuple[str, Any]] = []
    waiting: list[tuple[str, Any]] = [("", root)]
    known: set[int] = set()
    while waiting:
        prefix, module = waiting.pop()
        if id(module) in known:
            continue
        known.add(id(module))
        found.append((prefix, module))
        parts = [(f"{prefix}.{name}" if prefix else name, each) for name, each in _read(module, "_modules")]
        waiting += reversed(parts)
    return found


def list_parameters(root: Any) -> list[tuple[str, Any]]:
    """Return the parameters of a model, each once, with their names."""
    return _list_tensors(root, "_parameters")


def list_buffers(root: Any) -> list[tuple[str, Any]]:
    """Return the buffers of a model, each once, with their names."""
    return _list_tensors(root, "_buffers")


def list_own(module: Any) -> list[tuple[str, Any]]:
    """Return the parameters of one module, without those of its parts."""
    return list(_read(module, "_parameters"))


def _list_tensors(root: Any, kind: str) -> list[tuple[str, Any]]:
    found: dict[int, tuple[str, Any]] = {}
    for prefix, module in list_modules(root):
        for name, each in _read(module, kind):
            found.setdefault(id(each), (f"{prefix}.{name}" if prefix else name, each))
    return list(found.values())


def _read(module: Any, kind: str) -> Iterator[tuple[str, Any]]:
    held = vars(module).get(kind)
    return ((str(name), each) for name, each in (held.items() if held else ()) if each is not None)
