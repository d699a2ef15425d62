"""Tracebacks that arrive as text: torch's loader workers send them so."""

from __future__ import annotations

import re

from . import journal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CAUGHT = re.compile(
    r"Caught (?P<type>\S{1,200}) (?P<where>in DataLoader worker process (?P<worker>\d{1,9})|[^\n]{0,400})\.\nOriginal "
)
"""torch._utils.ExceptionWrapper.reraise."""
_FRAME = re.compile(r'  File "(?P<file>[^"\n]+)", line (?P<line>\d+)(?:, in (?P<function>[^\n]+))?')
_START = "Traceback (most recent call last):\n"
_LINKS = {
    "The above exception was the direct cause of the following exception:": "cause",
    "During handling of the above exception, another exception occurred:": "context",
}
_QUOTES = '"""'
_LONGEST = 1_000_000
"""Characters that are looked through; a text of that length is no traceback that anybody reads."""


def parse(message: str) -> dict[str, Any] | None:
    """Read the exception that a worker raised out of the message of the one that torch raised for it.

    Args:
        message: The whole message.

    Returns:
        worker (None where it is no loader's), where, type, message, frames and chain as `describe.describe` gives
        them; None where the text is of another form.
    """
    caught = _CAUGHT.search(message[:_LONGEST])
    if caught is None:
        return None
    blocks = parse_traceback(message[caught.end() : _LONGEST])
    if not blocks:
        return None
    last = blocks.pop()
    worker = caught["worker"]
    blocks.reverse()
    return {
        "worker": int(worker) if worker is not None else None,
        "where": caught["where"],
        "type": last["type"],
        "message": last["message"],
        "frames": last["frames"],
        "chain": _list_chain(blocks),
    }


def parse_cause(text: str) -> tuple[list[list[object]], list[dict[str, Any]]] | None:
    """Read what a pool puts before the exception that one of its processes raised.

    Args:
        text: A printed traceback between two lines of three quotes.

    Returns:
        Frames of the process, innermost first, and the chain of its exception as `describe.describe` gives it; None
        where the text is of another form.
    """
    lines = text[:_LONGEST].split("\n")
    while lines and lines[0] in ("", _QUOTES):
        del lines[0]
    while lines and lines[-1] in ("", _QUOTES):
        del lines[-1]
    blocks = parse_traceback("\n".join(lines))
    if not blocks or not blocks[-1]["frames"]:
        return None
    last = blocks.pop()
    blocks.reverse()
    return last["frames"], _list_chain(blocks)


def _list_chain(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = ("link", "type", "message", "frames")
    return [{name: block[name] for name in names} for block in blocks]


def parse_traceback(text: str) -> list[dict[str, Any]]:
    """Split a printed traceback into its exceptions.

    Args:
        text: From the first "Traceback (most recent call last):" on.

    Returns:
        The exceptions in the order of the text, the last one raised last: type, message, frames (innermost first) and
        link: how each belongs to the next.
    """
    blocks: list[dict[str, Any]] = []
    lines: list[str] = []
    for line in text.split("\n"):
        link = _LINKS.get(line)
        if link is None:
            lines.append(line)
            continue
        blocks.append({**_read_block(lines), "link": link})
        lines = []
    blocks.append({**_read_block(lines), "link": None})
    return [block for block in blocks if block["type"]]


def _read_block(lines: list[str]) -> dict[str, Any]:
    frames: list[list[object]] = []
    message: list[str] = []
    started = False
    for line in lines:
        if line + "\n" == _START:
            started = True
        elif started and not message and line.startswith("  "):
            found = _FRAME.match(line)
            if found is not None:
                frames.append([found["file"], int(found["line"]), found["function"] or "<module>"])
        elif started and (message or line):
            message.append(line)
    frames.reverse()
    # The first line without indentation names the exception; its message may go on over further lines.
    kind, _, text = "\n".join(message).rstrip("\n").partition(":")
    return {"type": kind.strip(), "message": journal.cut(text.strip()), "frames": frames}
