"""Switching the hooks of `run` off and on again inside a process that it watches.

Two runs of one job differ by more than the hooks cost; within one process both states can be timed in turn. What is
switched is found, not listed, so hooks that are added later are measured as well; a hook that cannot be switched
is an error, but for the audit hook of `files`, which the interpreter never gives back and no profile shows: without
the others torch's own step makes next to no audit event. What both states pay alike is seen by `whole` alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

PACKAGE = "ddpdoctor_watch"
Place = tuple[object, str, object, object]
"""Owner, attribute, what stands there without hooks, what with them."""


class Switch:
    """The hooks of this process.

    Raises:
        RuntimeError: this process is not watched.
    """

    def __init__(self) -> None:
        replacing = sys.modules.get(f"{PACKAGE}.core.replacing")
        if replacing is None:
            raise RuntimeError("this process is not watched")
        replaced: list[Place] = replacing.replaced
        self._places = [place for place in replaced if getattr(place[0], place[1], None) is place[3]]
        plain = {id(wrapper): original for _, _, original, wrapper in replaced}
        self._places += _find_imported(plain, {name: original for _, name, original, _ in replaced})
        self._places += _find_descriptors()
        self._taken: list[tuple[dict[int, object], int, object]] = []

    def turn(self, on: bool) -> None:
        """Put the hooks in, or what stood in their places before."""
        for owner, name, plain, hooked in self._places:
            setattr(owner, name, hooked if on else plain)
        if on:
            for registry, key, hook in self._taken:
                registry[key] = hook
            self._taken = []
            return
        for registry in _list_registries():
            for key, hook in list(registry.items()):
                if str(getattr(hook, "__module__", "")).startswith(f"{PACKAGE}."):
                    self._taken.append((registry, key, registry.pop(key)))


def _find_descriptors() -> list[Place]:
    """Return what stands in the places of methods of Work."""
    kind = getattr(sys.modules.get("torch.distributed"), "Work", None)
    return [
        (kind, name, value._real, value)
        for name, value in list(vars(kind or object).items())
        if str(type(value).__module__).startswith(f"{PACKAGE}.")
    ]


def _list_registries() -> list[dict[int, object]]:
    """Return where torch keeps what it calls around steps of optimizers, before forwards, and with a gradient."""
    optim, module = (sys.modules.get(f"torch.{name}") for name in ("optim.optimizer", "nn.modules.module"))
    kept = [getattr(optim, f"_global_optimizer_{name}_hooks", {}) for name in ("pre", "post")]
    gradients: Any = sys.modules.get(f"{PACKAGE}.training.gradients")
    handles = [
        probe.handle for watched in getattr(gradients, "_watched", ()) for probe in watched.probes.values()
    ]
    seen = [handle.hooks_dict_ref() for handle in handles if handle is not None]
    return [
        *kept,
        getattr(module, "_global_forward_pre_hooks", {}),
        *(each for each in seen if each is not None),
    ]


def _find_imported(plain: dict[int, object], decorators: dict[str, Any]) -> list[Place]:
    """Return what modules of torch hold of what was replaced elsewhere, or made by a decorator that was replaced."""
    places: list[Place] = []
    for module in list(sys.modules.values()):
        if not str(getattr(module, "__name__", "")).startswith("torch"):
            continue
        for name, value in list(vars(module).items()):
            if isinstance(value, FunctionType) and id(value) not in plain and _is_decorated(value):
                plain[id(value)] = _make_plain(value, decorators)
            if id(value) in plain:
                places.append((module, name, plain[id(value)], value))
    return places


def _is_decorated(function: FunctionType) -> bool:
    """What a decorator of ours makes has the name of a file of torch's, but uses functions of ours."""
    if not hasattr(function, "__wrapped__"):
        return False
    used = (function.__globals__.get(name) for name in function.__code__.co_names)
    return any(str(getattr(value, "__module__", "")).startswith(f"{PACKAGE}.") for value in used)


def _make_plain(function: FunctionType, decorators: dict[str, Any]) -> object:
    decorator = decorators[
        "_time_logger" if "Counting" in function.__code__.co_names else "_exception_logger"
    ]
    inner = vars(function)["__wrapped__"]
    return decorator(_make_plain(inner, decorators) if _is_decorated(inner) else inner)


def count_calls(work: Callable[[], object]) -> dict[str, int]:
    """Do something, and return how often each function of ours was called in this thread meanwhile."""
    folder = str(Path(sys.modules[PACKAGE].__file__ or "").parent)
    counts: dict[str, int] = {}

    def see(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(folder):
            name = f"{Path(code.co_filename).stem}.{code.co_name}"
            counts[name] = counts.get(name, 0) + 1

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        work()
    finally:
        sys.setprofile(before)
    return counts
