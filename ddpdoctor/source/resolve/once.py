"""What is found of all files is found once: it is kept with what it was found of, and freed with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, TypeVar


class Keeper(Protocol):
    """What keeps that, by the function that finds it: a table of a module would hold files that nothing else uses."""

    kept: dict[object, Any]


Of = TypeVar("Of", bound=Keeper)
Found = TypeVar("Found")


def once(find: Callable[[Of], Found]) -> Callable[[Of], Found]:
    """Return a function that calls another the first time alone, and gives what that found each further time.

    Where it raises, it is called again.
    """

    @wraps(find)
    def look_up(keeper: Of) -> Found:
        try:
            found: Found = keeper.kept[find]
        except KeyError:
            found = keeper.kept[find] = find(keeper)
        return found

    return look_up
