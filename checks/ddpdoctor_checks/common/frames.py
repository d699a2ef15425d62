"""Stacks of jobs: the user's lines in them, and stacks that came as text inside a message."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddpdoctor.evidence import Frame
from ddpdoctor_checks.common.stage_evidence import find_user_lines

_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
"""Have a frame of their own before Python 3.12."""
_FRAME = re.compile(
    r'^\s{0,16}File "(?P<file>[^"\n]{1,400})", line (?P<line>\d{1,7}), in (?P<function>[^\n]{1,200})$'
)
_LAST = re.compile(r"^(?P<type>[A-Za-z_][\w.]{0,200}?)(?:: (?P<message>.*))?$")

MOST_PLACES = 12
"""Frames of the user's own that a finding holds: deeper stacks are recursions or frameworks."""


def user_frames(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return the frames of the user's own files, in the order given; a comprehension belongs to its function."""
    own = find_user_lines(frames)
    return tuple(
        frame
        for frame, caller in zip(own, [*own[1:], None], strict=False)
        if caller is None
        or frame.function not in _COMPREHENSIONS
        or (frame.file, frame.line) != (caller.file, caller.line)
    )


def user_line(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of the user's own files; None where there is none."""
    return next(iter(user_frames(frames)), None)


def tell_line(line: Frame | None) -> str:
    """Return `` at train.py:88``; empty where there is no line."""
    return f" at {line.file}:{line.line}" if line is not None else ""


def stands_in(frames: Sequence[Frame], part: str, function: str | None = None, deep: int = 12) -> bool:
    """Whether one of the innermost frames lies in a library's file whose path contains ``part``.

    Args:
        frames: innermost first.
        part: e.g. ``torch/serialization.py``.
        function: only in this function.
        deep: frames that are looked at.
    """
    return any(
        part in frame.file and not frame.is_user and (function is None or frame.function == function)
        for frame in frames[:deep]
    )


def read_traceback(text: str) -> tuple[tuple[Frame, ...], str | None, str]:
    """Read the last traceback that stands in a message.

    Returns:
        Frames, innermost first; type and message of the exception; type is None where there is no traceback.
    """
    frames: list[Frame] = []
    lines = text.splitlines()
    last = -1
    for number, line in enumerate(lines):
        if line.lstrip().startswith("Traceback (most recent call last)"):
            frames = []
        match = _FRAME.match(line)
        if match is not None:
            frames.append(Frame(match["file"], int(match["line"]), match["function"]))
            last = number
    if not frames:
        return (), None, text
    for number in range(last + 1, len(lines)):
        line = lines[number]
        if line and not line[0].isspace():
            match = _LAST.match(line)
            if match is not None:
                message = "\n".join([match["message"] or "", *lines[number + 1 :]]).strip()
                return tuple(reversed(frames)), match["type"], message
            break
    return tuple(reversed(frames)), None, text


def cut_at_start(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return a child's own frames: below the start of a forked one stands its parent's stack at the fork."""
    for number, frame in enumerate(frames):
        if frame.function == "_bootstrap" and frame.file.endswith("multiprocessing/process.py"):
            return tuple(frames[:number])
    return tuple(frames)
