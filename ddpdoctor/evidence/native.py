"""Native frames: where a process stands below its innermost Python line, in which library."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

UNKNOWN = "?"
"""Name of a function for which its library has no symbol."""
NAME_LIMIT = 160
"""Characters of a function's name: templates have thousands."""
_ADDRESS = re.compile(r"^0x[0-9a-fA-F]+$")
_SYSTEM = re.compile(
    r"^((libc|libpthread|librt|libdl|libm|libgcc_s|libstdc\+\+)[.-]|ld-(linux|musl)|linux-vdso|\[vdso\])"
)
_INTERPRETER = re.compile(r"^(python[\d.]*$|python/|libpython|libffi|_ctypes\.|_cffi_backend\.)")
"""What everybody's code goes through: it does not tell whose it is."""
_DRIVER = re.compile(r"^(libcuda|libcudart|libhsa-runtime64|libamdhip64)\.so")


@dataclass(frozen=True, slots=True)
class NativeFrame:
    """One frame of machine code."""

    function: str
    """Without its arguments; `UNKNOWN` where there is no symbol."""
    library: str
    """File name of the library or program, e.g. ``libtorch_cpu.so``."""
    place: str | None = None
    """``foo.c:12`` where the library was built with debug information."""


def telling_frame(frames: Sequence[NativeFrame]) -> NativeFrame | None:
    """Return the frame that says most: the innermost with a name that is no system library's, else the innermost.

    Args:
        frames: innermost first.
    """
    named = [frame for frame in frames if frame.function != UNKNOWN]
    own = [frame for frame in frames if not _SYSTEM.match(frame.library) and not _is_interpreter(frame)]
    named_own = [frame for frame in own if frame.function != UNKNOWN]
    return next(iter([*named_own[:1], *own[:1], *named, *frames]), None)


def is_in_driver(frames: Sequence[NativeFrame]) -> bool:
    """Whether a process stands in the driver of its GPU, by the innermost frame that is no system library's.

    Args:
        frames: innermost first.
    """
    own = next((frame for frame in frames if not _SYSTEM.match(frame.library)), None)
    return own is not None and _DRIVER.match(own.library) is not None


def name_native(frame: NativeFrame) -> str:
    """Return ``do_work() of libfoo.so``."""
    place = f" ({frame.place})" if frame.place else ""
    if frame.function == UNKNOWN:
        return f"{frame.library}, which has no function names"
    return f"{frame.function}() of {frame.library}{place}"


def leave_interpreter(frames: Sequence[NativeFrame]) -> tuple[NativeFrame, ...]:
    """Return frames without those at the outer end by which Python calls libraries.

    Args:
        frames: innermost first.
    """
    count = len(frames)
    while count > 1 and _is_interpreter(frames[count - 1]):
        count -= 1
    return tuple(frames[:count])


def shorten_name(name: str) -> str:
    """Return a demangled function's name without arguments; `UNKNOWN` for a bare address, which differs by process."""
    if _ADDRESS.match(name):
        return UNKNOWN
    depth, text = 0, name.replace("(anonymous namespace)", "{anonymous}").replace("operator()", "operator{}")
    for place, sign in enumerate(text):
        depth += (sign == "<") - (sign == ">" and text[place - 1] != "-")
        if sign == "(" and depth <= 0 and place:
            text = text[:place]
            break
    plain = text.replace("{anonymous}", "(anonymous)").replace("operator{}", "operator()")
    return plain.rstrip() if len(plain) <= NAME_LIMIT else f"{plain[: NAME_LIMIT - 1].rstrip()}…"


def _is_interpreter(frame: NativeFrame) -> bool:
    return _INTERPRETER.match(frame.library) is not None
