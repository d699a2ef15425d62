"""What the parts of the hook do when this process is forked and when it ends: each part registers it here."""

from __future__ import annotations

import sys

from . import journal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[[], object])

FORKED, ENDING, LEAVING, ENDED = "fork", "atexit", "os._exit", "end"
"""Moments: in a forked child, whose past is its parent's; before the interpreter writes its ``end`` event; before
os._exit, where only what takes next to no time is done; after the ``end`` event."""

_parts: dict[str, list[Callable[[], object]]] = {FORKED: [], ENDING: [], LEAVING: [], ENDED: []}

_PACKAGE = __package__.partition(".")[0]
_DEVICES = ("cuda", "xpu", "mtia")
"""Modules of torch for devices whose driver a forked child cannot use."""
_HOLDERS = frozenset({"dict", "list", "set", "tuple", "deque", "defaultdict", "OrderedDict"})
MOST_HELD = 100_000
"""Objects that are followed for what they hold; those of the hook's own come first."""


def at(*moments: str) -> Callable[[F], F]:
    """Return a decorator that registers a function for some moments."""

    def note(function: F) -> F:
        for moment in moments:
            _parts[moment].append(function)
        return function

    return note


def reach(moment: str) -> None:
    """Call the functions of a moment; one that fails keeps no other from running."""
    for function in _parts[moment]:
        try:
            function()
        except Exception as error:
            journal.failed(moment, error)


def _is_used(device: str) -> bool:
    return bool(getattr(sys.modules.get(f"torch.{device}"), "_initialized", False))


def keep_all() -> None:
    """Let nothing that the hook holds be freed in this forked child, where nothing else has run yet.

    The parts forget what their parent has seen. Of a tensor that is used with a GPU (pinned memory that a copy went to,
    events) that is more than forgetting: it asks the driver, which a forked child must not, and C++ ends the process.
    So all of it stays, also when the interpreter ends.
    """
    ctypes = sys.modules.get("ctypes")
    if ctypes is None or not any(map(_is_used, _DEVICES)):
        return
    import gc

    own = {name for name in list(sys.modules) if name.partition(".")[0] == _PACKAGE}
    follow: list[Any] = [vars(sys.modules[name]) for name in own]
    known: set[int] = set()
    held: list[Any] = []
    for holder in follow:  # which grows
        referents = gc.get_referents(holder)
        held.append(referents)
        for each in referents:
            kind = type(each)
            if kind.__name__ not in _HOLDERS and kind.__module__ not in own:
                continue
            key = id(each)  # not of all: it is an event of the audit hook
            if key not in known and len(follow) < MOST_HELD:
                known.add(key)
                follow.append(each)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
