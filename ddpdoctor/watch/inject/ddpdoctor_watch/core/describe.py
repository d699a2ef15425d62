"""Exceptions and stacks as JSON values, bounded; nothing of the program's can make it raise."""

from __future__ import annotations

import os

from . import journal, process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any

    Frames = list[list[object]]
    from ddpdoctor.facts import events

INNER, OUTER = 120, 40
"""Frames that are kept of a long stack; a recursion error has a thousand."""
CHAIN = 8
"""Exceptions of a chain, and members of a group, that are kept."""
NOTES = 10
ORIGINAL = "\nOriginal Traceback (most recent call last):\n"
"""What torch._utils.ExceptionWrapper puts between its own words and a worker's traceback."""

REMOTE = ("RemoteTraceback", "_RemoteTraceback")
"""Exceptions of multiprocessing.pool, and of concurrent.futures and joblib, that hold the traceback of another process
as text."""


def read_message(value: BaseException) -> str:
    """Give what an exception says, also where its own ``__str__`` fails."""
    try:
        return journal.cut(str(value))
    except Exception as error:
        return f"<its __str__ raised {type(error).__name__}>"


def name_type(kind: type) -> str:
    """Name a class as a traceback does."""
    module = getattr(kind, "__module__", None)
    name = str(getattr(kind, "__qualname__", kind))
    return name if module in (None, "builtins") else f"{module}.{name}"


def strip_own(value: BaseException | None) -> None:
    """Take the frames of our wrappers out of the tracebacks of an exception and of its chain.

    A wrapper that an exception passed through leaves an entry that the program's printed traceback would not
    have without us.
    """
    seen: set[int] = set()
    while value is not None and id(value) not in seen and len(seen) < CHAIN:
        seen.add(id(value))
        previous, entry = None, value.__traceback__
        while entry is not None:
            following = entry.tb_next
            if entry.tb_frame.f_code.co_filename.startswith(journal.HERE):
                if previous is None:
                    value.__traceback__ = following
                else:
                    previous.tb_next = following
            else:
                previous = entry
            entry = following
        value = value.__cause__ or value.__context__


def list_traceback(traceback: TracebackType | None) -> Frames:
    """List the frames of a traceback, innermost first, as [file, line, function]."""
    entries = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    entries.reverse()
    return [
        _frame(entry.tb_frame, entry.tb_lineno)
        for entry in (entries if len(entries) <= INNER + OUTER else entries[:INNER] + entries[-OUTER:])
        if not entry.tb_frame.f_code.co_filename.startswith(journal.HERE)
    ]


def list_stack(frame: FrameType | None) -> Frames:
    """List the frames of a stack from one outwards, innermost first."""
    frames: Frames = []
    while frame is not None and len(frames) < INNER:
        if not frame.f_code.co_filename.startswith(journal.HERE):
            frames.append(_frame(frame, frame.f_lineno))
        frame = frame.f_back
    return frames


def describe(value: BaseException, traceback: TracebackType | None = None) -> events.ExceptionParts:
    """Describe an exception with all that led to it.

    Args:
        value: The exception.
        traceback: Where it differs from the exception's own.

    Returns:
        type, message, frames, chain (nearest first; link says how each belongs to the one after it in time),
        and where there are any: members of a group, notes, and worker with ``parent`` for an error that a
        loader worker sent.
    """
    told: Any = _describe_one(value, traceback)
    chain: list[dict[str, object]] = []
    if ORIGINAL in str(told["message"]):
        # Sent by a worker as text: what happened there, and the frames of ours that it came out of.
        from . import remote

        sent = remote.parse(str(value))
        if sent is not None:
            chain = sent.pop("chain")[:CHAIN]
            told = {**sent, "parent": {"type": told["type"], "frames": told["frames"]}}
    seen = {id(value)}
    current = value
    while len(chain) < CHAIN:
        link, following = "cause", current.__cause__
        if following is None:
            if current.__suppress_context__:
                break
            link, following = "context", current.__context__
        if following is None or id(following) in seen:
            break
        seen.add(id(following))
        if type(following).__name__ in REMOTE and _take_remote(
            chain[-1] if chain else told, following, chain
        ):
            break
        chain.append({"link": link, **_describe_one(following)})
        current = following
    told["chain"] = chain
    described: events.ExceptionParts = told
    return described


def _take_remote(told: dict[str, object], cause: BaseException, chain: list[dict[str, object]]) -> bool:
    """Give an exception that a process of a pool sent back the frames of that process, and its chain."""
    from . import remote

    sent = remote.parse_cause(read_message(cause))
    if sent is None:
        return False
    if chain:
        here: Any = told["frames"]
        told["frames"] = [*sent[0], *here]
    else:
        told["parent"] = {"type": told["type"], "frames": told["frames"]}
        told["frames"] = sent[0]
    chain.extend(sent[1][: CHAIN - len(chain)])
    return True


def _describe_one(
    value: BaseException, traceback: TracebackType | None = None, depth: int = 0
) -> dict[str, object]:
    frames = list_traceback(traceback or value.__traceback__)
    told: dict[str, object] = {
        "type": name_type(type(value)),
        "message": read_message(value),
        "frames": frames,
    }
    if isinstance(value, SyntaxError) and isinstance(value.filename, str):
        # The place is in the source that could not be compiled: no frame of it ever ran.
        frames.insert(0, [_absolute(value.filename), value.lineno or 0, "<module>"])
        told["syntax"] = True
    notes = getattr(value, "__notes__", None)
    if isinstance(notes, list) and notes:
        told["notes"] = [journal.cut(str(note)) for note in notes[:NOTES] if isinstance(note, str)]
    members = getattr(value, "exceptions", None)
    if isinstance(members, tuple) and depth < 3:
        told["members"] = [
            {**_describe_one(member, None, depth + 1), "chain": _list_causes(member)}
            for member in members[:CHAIN]
            if isinstance(member, BaseException)
        ]
    return told


def _list_causes(value: BaseException) -> list[dict[str, object]]:
    """Describe what a member of a group was raised from, nearest first."""
    found: list[dict[str, object]] = []
    seen = {id(value)}
    current = value.__cause__
    while current is not None and id(current) not in seen and len(found) < CHAIN:
        seen.add(id(current))
        found.append({"link": "cause", **_describe_one(current, None, 3)})
        current = current.__cause__
    return found


def _frame(frame: FrameType, line: int | None) -> list[object]:
    code = frame.f_code
    return [_absolute(code.co_filename), line or 0, code.co_name]


def _absolute(name: str) -> str:
    # Before Python 3.9 a script's code has the name as it was given.
    if name[:1] in ("/", "<") or not process.directory:
        return name
    return os.path.join(process.directory, name)
