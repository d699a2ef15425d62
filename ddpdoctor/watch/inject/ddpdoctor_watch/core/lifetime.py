"""What the parts of the hook do when this process is forked and when it ends: each part registers it here."""

from __future__ import annotations

from . import journal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    F = TypeVar("F", bound=Callable[[], object])

FORKED, ENDING, LEAVING, ENDED = "fork", "atexit", "os._exit", "end"
"""Moments: in a forked child, whose past is its parent's; before the interpreter writes its ``end`` event; before
os._exit, where only what takes next to no time is done; after the ``end`` event."""

_parts: dict[str, list[Callable[[], object]]] = {FORKED: [], ENDING: [], LEAVING: [], ENDED: []}


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
