"""Ranks that have run out of batches under ``Join``: how many steps of the others they went along with.

Such a rank makes none of its own: it shadows the collectives of the others, and is given their model at the end. What
it holds before its fifth step belongs to what others hold before their seventh, where it has shadowed two.
"""

from __future__ import annotations

import sys

from ..core import journal, lifetime
from . import ddp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType
    from typing import Any

_shadowed: dict[int, int] = {}
"""Number of a wrapper -> iterations of other ranks that this one has shadowed."""
leaving = False
"""This rank is at the end of a Join: steps that are made now are made on behalf of the others."""


class Told:
    """Stands in the place of a method that Join calls, and tells of each call before it."""

    def __init__(self, real: Any, tell: Callable[[Any], None]) -> None:
        self._real, self._tell = real, tell

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        if owner is not None:
            try:
                self._tell(owner)
            except Exception as error:
                journal.failed("joins", error)
        return self._real.__get__(owner, kind)


def install(module: ModuleType) -> None:
    """See ranks shadow others; called when torch.nn.parallel.distributed has been executed."""
    hook = getattr(module, "_DDPJoinHook", None)
    join = getattr(sys.modules.get("torch.distributed.algorithms.join"), "Join", None)
    for kind, name, tell in (
        (join, "_get_num_nonjoined_procs", _note_leaving),
        (hook, "main_hook", _note_shadow),
        (hook, "post_hook", _note_left),
    ):
        real = vars(kind).get(name) if kind is not None else None
        if real is None:
            journal.trouble("joins", f"torch has no {name} of Join: steps are not matched under it")
        else:
            setattr(kind, name, Told(real, tell))


def count(wrappers: Iterable[int]) -> int:
    """Return how many iterations were shadowed for some wrappers that are stepped together."""
    return max((_shadowed.get(number, 0) for number in wrappers), default=0)


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child has shadowed nothing."""
    global leaving
    leaving = False
    _shadowed.clear()


def _note_leaving(_: Any) -> None:
    global leaving
    leaving = True


def _note_shadow(hook: Any) -> None:
    number = ddp.number(hook.ddp)
    _shadowed[number] = _shadowed.get(number, 0) + 1


def _note_left(_: Any) -> None:
    global leaving
    leaving = False
