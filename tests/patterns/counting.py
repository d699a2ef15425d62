"""Counting what Python does, where seconds would tell of the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable


class TooManyEventsError(Exception):
    """More happened than may."""


def count_events(work: Callable[[], object], most: int) -> int:
    """Return how many calls some work makes, generators' and built-in ones too.

    Raises:
        TooManyEventsError: they are more than ``most``.
    """
    seen = [0]

    def note(frame: object, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            seen[0] += 1
            if seen[0] > most:
                sys.setprofile(None)
                raise TooManyEventsError

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return seen[0]
