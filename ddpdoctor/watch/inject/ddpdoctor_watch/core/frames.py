"""Which frames are the user's: a finding names lines of the program, not of torch, of a package or of ours."""

from __future__ import annotations

import os
import sys

from . import describe, process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Any

    from ddpdoctor.facts import ownership

    Mark = tuple[CodeType | None, int, dict[str, Any] | None, int]
else:
    from .. import ownership

DEPTH = 60
"""Frames that are looked through for those that are the user's."""
CALLERS = 3
"""Most of the user's frames that make a place."""
_CODES = 20_000
"""Code objects that are remembered."""

_roots: ownership.Roots | None = None
"""Folders whose files are not the user's; None as long as nothing can be told."""
_own: dict[int, tuple[CodeType, bool]] = {}
"""Whether a code object is the user's, by its id: the hash of one is made anew each time, from all of its names."""


def begin() -> None:
    """Tell frames apart from now on: torch is imported, and a process group about to be made."""
    global _roots
    _roots = find_roots()


def find_roots() -> ownership.Roots:
    """Tell which folders are Python's, torch's, as far as it is imported, and ours."""
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    python = getattr(os, "__file__", None)
    return ownership.Roots(
        python=[os.path.dirname(python)] if python else [],
        torch=[os.path.dirname(torch)] if torch else [],
        ours=[os.path.dirname(os.path.dirname(ownership.__file__))],
        scripts=[os.path.dirname(sys.executable)] if sys.executable else [],
        command=process.is_command(),
    )


def after_fork() -> None:
    """A forked child tells nothing of itself before it calls something."""
    global _roots
    _roots = None


def is_own(frame: FrameType) -> bool:
    """Whether a frame is the user's."""
    return find_near(frame, 1) is not None


def find_own(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame that is the user's, from one outwards; None where there is none."""
    return find_near(frame, DEPTH)


def find_near(frame: FrameType | None, most: int) -> FrameType | None:
    """Return the innermost frame that is the user's among the next so many outwards; None where there is none."""
    own = _own
    while frame is not None and most > 0 and _roots is not None:
        code = frame.f_code
        known = own.get(id(code))
        if known is None or known[0] is not code:
            known = _learn(code)
        if known[1]:
            return frame
        frame = frame.f_back
        most -= 1
    return None


def list_own(frame: FrameType | None, most: int) -> list[list[object]]:
    """Return the stack from the innermost frame that is the user's, so many frames of it; none where there is none."""
    own = find_own(frame)
    return describe.list_stack(own)[:most] if own is not None else []


def find_place(frame: FrameType | None) -> tuple[FrameType | None, tuple[object, ...]]:
    """Return the innermost frame that is the user's, and a key of the lines of his that lead there.

    Up to `CALLERS` of them: a helper that is called from two lines is two places.
    """
    looked = 0
    own = _own
    key: list[object] = []
    first = None
    while frame is not None and looked < DEPTH and len(key) < 2 * CALLERS:
        code = frame.f_code
        known = own.get(id(code))
        if known is None or known[0] is not code:
            known = _learn(code)
            if known[1] and own.get(id(code)) is not known:
                return None, ()
        if known[1]:
            first = first or frame
            key += (id(code), frame.f_lasti)
        frame = frame.f_back
        looked += 1
    return first, tuple(key)


def list_way(frame: FrameType | None) -> tuple[tuple[Mark, ...], bool]:
    """Return what a place's key was made of, by what each frame is known again.

    Returns:
        Of each frame its code, or the names of its module: a look at ``f_code`` would be an audit event. Of the user's
        the place in the code too (else -1), and beside a module the line (else 0). None where there are too many. And
        whether the last one is the outermost.
    """
    way: list[Mark] = []
    own = 0
    while frame is not None and own < CALLERS:
        if len(way) >= DEPTH:
            return (), False
        mine, names = is_own(frame), frame.f_globals
        own += mine
        place = frame.f_lasti if mine else -1
        if _is_of_module(names):
            way.append((None, place, names, frame.f_lineno if mine else 0))
        else:
            way.append((frame.f_code, place, None, 0))
        frame = frame.f_back
    return tuple(way), own < CALLERS


def _is_of_module(names: dict[str, Any]) -> bool:
    """Whether a frame's global names are those of an imported module, which stay as long as the process."""
    name = names.get("__name__")
    return type(name) is str and getattr(sys.modules.get(name), "__dict__", None) is names


def _learn(code: CodeType) -> tuple[CodeType, bool]:
    """Judge a code object, and remember it as long as there is room."""
    known = code, ownership.find_owner(code.co_filename, _roots or ownership.UNKNOWN) == ownership.USER
    if len(_own) < _CODES:
        _own[id(code)] = known  # Which keeps the code, so that its id stays its own.
    return known
