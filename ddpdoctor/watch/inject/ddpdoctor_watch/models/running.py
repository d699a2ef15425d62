"""Which modules are called: seen where torch asks each whether it was compiled, and only while somebody listens.

``Module.__call__`` begins by reading the class's attribute ``_compiled_call_impl``, which is None. A descriptor in its
place is told of the module, and gives None. Nothing is registered with torch: a global hook would change the way that
torch takes through each call, what the compiler makes of it, and tracebacks.
"""

from __future__ import annotations

import sys

from ..core import journal, lifetime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any

    Listener = Callable[[Any, FrameType], object]

_NAME = "_compiled_call_impl"
MOST = 300
"""How often the descriptor is put there: each time Python forgets where it has found attributes of modules, and after
a thousand times it no longer looks for a shorter way."""

_listeners: list[Listener] = []
_door: CodeType | None = None
"""Code of the function that reads the attribute."""
_put = 0


class _Asked:
    """Stands in the place of the attribute."""

    def __get__(self, module: Any, owner: Any = None) -> None:
        if module is None:
            return
        frame = sys._getframe(1)
        if frame.f_code is _door:
            for listener in tuple(_listeners):
                try:
                    listener(module, frame)
                except Exception as error:
                    journal.failed("running", error)


_asked = _Asked()


def listen(listener: Listener) -> bool:
    """Call a function with each module that is called from now on, and the frame of ``Module.__call__``.

    Returns:
        False where that cannot be seen.
    """
    global _door, _put
    if listener in _listeners:
        return True
    kind = sys.modules["torch.nn.modules.module"].Module
    if not _listeners:
        _door = getattr(getattr(kind, "_wrapped_call_impl", None), "__code__", None)
        free = _door is not None and _NAME in _door.co_names and vars(kind).get(_NAME, 0) is None
        if not free or _put >= MOST:
            return False
        _put += 1
        setattr(kind, _NAME, _asked)
    _listeners.append(listener)
    return True


def stop(listener: Listener) -> None:
    """Call it no longer."""
    if listener not in _listeners:
        return
    _listeners.remove(listener)
    kind = sys.modules["torch.nn.modules.module"].Module
    if not _listeners and vars(kind).get(_NAME) is _asked:
        setattr(kind, _NAME, None)


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """Nobody in a forked child listens."""
    for listener in tuple(_listeners):
        stop(listener)
