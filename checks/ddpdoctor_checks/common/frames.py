"""Stacks: the user's lines in them, how they are shown, and stacks that came as text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddpdoctor.evidence import Frame, RankSet, StackClass
from ddpdoctor.facts.ownership import OURS, TORCH, USER, trim
from ddpdoctor.judge import Where
from ddpdoctor_checks.common.wording import name_set

_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
"""Have a frame of their own before Python 3.12."""
_FRAME = re.compile(
    r'^\s{0,16}File "(?P<file>[^"\n]{1,400})", line (?P<line>\d{1,7}), in (?P<function>[^\n]{1,200})$'
)
_LAST = re.compile(r"^(?P<type>[A-Za-z_][\w.]{0,200}?)(?:: (?P<message>.*))?$")

_FATAL_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)', re.MULTILINE)
"""What faulthandler writes (docs.python.org, faulthandler, "Example")."""
_COMMUNICATION = re.compile(r"(^|/)torch/(distributed|nn/parallel|autograd)/")
"""autograd: DDP's reducer waits for its all-reduces inside the C++ engine, below torch/autograd/graph.py."""

MOST_PLACES = 12
"""Frames of the user's own that a finding holds: deeper stacks are recursions or frameworks."""


def find_user_line(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of the user's own code; None where there is none."""
    return next(iter(find_user_lines(frames)), None)


def find_user_lines(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return the frames of the user's own code, in the order given."""
    return tuple(frame for frame in frames if frame.is_user)


def find_line(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of the user's own code; else of ddpdoctor's probe; else the innermost."""
    shown, _ = fold_frames(frames)
    return find_user_line(frames) or next(iter(shown or frames), None)


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


def read_fatal_frames(text: str) -> tuple[Frame, ...]:
    """Return the frames of the thread that crashed, innermost first, from what faulthandler wrote."""
    current = text.partition("Current thread ")[2] or text.partition("Stack (most recent call first)")[2]
    thread = current.split("\n\n")[0]
    return tuple(Frame(m["file"], int(m["line"]), m["function"]) for m in _FATAL_FRAME.finditer(thread))


def is_waiting(frames: Sequence[Frame]) -> bool:
    """Whether a stack stands inside torch's communication code, and not in code that this code has called.

    A probe of ddpdoctor that calls ``Work.wait`` is the innermost frame itself, since that is native code.
    """
    for frame in frames:
        if frame.whose == OURS:
            return True
        if frame.is_user:
            return False
        if frame.whose == TORCH and _COMMUNICATION.search(frame.file):
            return True
    return False


def fold_frames(frames: Sequence[Frame]) -> tuple[tuple[Frame, ...], int]:
    """Split a stack into the frames worth showing and the number of library frames that were folded away."""
    kept = tuple(frame for frame in frames if frame.whose in (USER, OURS))
    return kept, len(frames) - len(kept)


def describe_stack(stack: StackClass) -> str:
    """Return where a class of ranks stands, e.g. ``ranks 0-2 in all_reduce (torch/…/c10d.py:2810)``."""
    frame = stack.frames[0] if stack.frames else None
    who = name_set(stack.ranks)
    if frame is None:
        return f"{who} could not be read (process state {stack.state or 'unknown'})"
    line = find_line(stack.frames)
    text = f"{who} in {frame.function} ({_shorten(frame.file)}:{frame.line})"
    if line is not None and line is not frame:
        text += f", from {line.function} ({_shorten(line.file)}:{line.line})"
    return text


def place_stacks(stacks: Sequence[StackClass], culprits: RankSet) -> tuple[Where, ...]:
    """Return one place per line, culprits first; the role is victim for classes outside ``culprits``."""
    blamed = set(culprits)
    found: dict[tuple[str, str, int, str], RankSet] = {}
    for stack in stacks:
        frame = find_line(stack.frames)
        if frame is not None:
            role = "culprit" if any(rank in blamed for rank in stack.ranks) else "victim"
            key = (role, frame.file, frame.line, frame.function)
            found[key] = found.get(key, RankSet()).union(stack.ranks)
    places = [Where(ranks, role, file, line, name) for (role, file, line, name), ranks in found.items()]
    return tuple(sorted(places, key=lambda place: place.role))


def _shorten(file: str) -> str:
    """Drop the directories before the package, so that a library path fits a sentence."""
    within = trim(file)
    if within != file:
        return within
    return "/".join(file.split("/")[-3:]) if file.count("/") > 3 else file
