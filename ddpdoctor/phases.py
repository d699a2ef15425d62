"""Names for the phases of a program: what `ddpdoctor run` says of a rank besides its line.

Outside of `run` the functions do nothing. They issue no collective, and print and raise nothing.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

LONGEST = 100
"""Characters of a name; what is longer is cut."""
MOST_MARKS = 1_500
"""Most marks of a process; below the 2,000 milestones that its journal takes, of which others need some."""

_current: str | None = None
_marks = 0


def mark_phase(name: str | None) -> None:
    """Say what the program does from here on, such as ``"evaluation, epoch 3"``.

    Args:
        name: of the phase, in one line; None is none.
    """
    global _current, _marks
    if name == _current:
        return
    _current = name
    hook = sys.modules.get("ddpdoctor_watch.core.journal")
    if hook is None or _marks > MOST_MARKS:
        return
    _marks += 1
    if _marks > MOST_MARKS:  # a name that is never taken back would be wrong from here on
        name = None
    detail = None if name is None else " ".join(str(name).split())[:LONGEST]
    with contextlib.suppress(Exception):
        hook.write("milestone", {"name": "phase", "detail": detail})


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Name the phase of a ``with`` block; after it the phase is the one before.

    Where the block raises, the phase stays: the program has failed in it.

    Args:
        name: of the phase, in one line.
    """
    before = _current
    mark_phase(name)
    yield
    mark_phase(before)
