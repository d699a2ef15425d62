"""Building DDP and an optimizer without loading torch's compiler, which neither uses."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"


class _Deferred(ModuleType):
    """Stands for a module until more is asked of it than is answered here; then loads the real one."""

    def __init__(self, name: str, answers: dict[str, Any]) -> None:
        super().__init__(name)
        self.__dict__.update(answers)

    def __getattr__(self, attribute: str) -> Any:
        if sys.modules.get(COMPILER) is _STANDING.get(COMPILER):
            sys.modules.pop(COMPILER, None)
        return getattr(importlib.import_module(self.__name__), attribute)


_STANDING: dict[str, ModuleType] = {}


@contextmanager
def deferred_compiler() -> Iterator[None]:
    """Let DDP and optimizers do without ``torch._dynamo`` while the block runs, unless it is loaded already.

    ``DistributedDataParallel.__init__`` asks it one question (is there a mode of the compiler to prepare for)
    and optimizers call its ``disable`` and ``graph_break``, which do nothing where nothing is compiled. For
    that Python loads 800 modules, sympy among them: 1.0 to 1.4 s of processor time in every rank, several
    times what all experiments need. Within the block the question is answered as it is by default
    (``ddp_optimizer``, ``torch._dynamo.config.optimize_ddp``); anything else that is asked loads the real
    module.
    """
    if COMPILER in sys.modules:
        yield
        return
    utils = _Deferred(f"{COMPILER}.utils", {"get_optimize_ddp_mode": lambda: "ddp_optimizer"})
    standing = _Deferred(COMPILER, {"disable": _disable, "graph_break": _pass, "utils": utils})
    _STANDING[COMPILER] = sys.modules[COMPILER] = standing
    try:
        yield
    finally:
        if sys.modules.get(COMPILER) is standing:
            del sys.modules[COMPILER]
        del _STANDING[COMPILER]


def _disable(fn: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
    return fn


def _pass(*_: Any, **__: Any) -> None:
    """Do nothing, as `torch._dynamo.graph_break` does where nothing is compiled."""
