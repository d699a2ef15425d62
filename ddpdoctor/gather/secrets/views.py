"""A text as it reads without escapes and line breaks, with the way back to where each character stands."""

from __future__ import annotations

import bisect
import html
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

DEEPEST = 3
"""Escapes inside escapes that are followed: JSON in a string in a log has two."""
_ESCAPED = re.compile(
    r"\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[\"'\\/ntr])|%[0-9A-Fa-f]{2}|&(?:quot|apos|amp|#39|#34|#x27);"
)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r"}
_BREAK = re.compile(r"(?<=[A-Za-z0-9+/_=.-])[ \t]{0,8}\\?\r?\n[ \t>|]{0,80}(?=[A-Za-z0-9+/_=.-])")


@dataclass(slots=True)
class View:
    """A text made of another one: pieces of it, and characters that stand for several."""

    text: str
    _starts: list[int] = field(default_factory=lambda: [0])
    """Where each piece begins in ``text``."""
    _origins: list[int] = field(default_factory=lambda: [0])
    """Where it begins in the original."""
    _widths: list[int] = field(default_factory=lambda: [1])
    """Characters of the original for each of ``text``."""

    def start(self, position: int) -> int:
        """Return where the character at a position begins in the original."""
        piece = bisect.bisect_right(self._starts, position) - 1
        return self._origins[piece] + (position - self._starts[piece]) * self._widths[piece]

    def end(self, position: int) -> int:
        """Return where the character before a position ends in the original."""
        piece = bisect.bisect_right(self._starts, position - 1) - 1
        return self._origins[piece] + (position - self._starts[piece]) * self._widths[piece]

    def breaks(self, start: int, end: int) -> list[int]:
        """Return where pieces begin inside a stretch of ``text``."""
        first, last = bisect.bisect_right(self._starts, start), bisect.bisect_left(self._starts, end)
        return self._starts[first:last]


def read_views(text: str) -> Iterator[View]:
    """Yield a text as it is, and as often as it has escapes what it reads without them."""
    view = View(text)
    yield view
    for _ in range(DEEPEST):
        if not any(mark in view.text for mark in "\\%&"):
            return
        further = _replace(view, _ESCAPED, _read_escape)
        if further is None:
            return
        view = further
        yield view


def joined_view(text: str) -> View | None:
    """Return a text without the line breaks between characters of which tokens are made; None without any."""
    return _replace(View(text), _BREAK, lambda text: "")


def _replace(view: View, pattern: re.Pattern[str], read: Callable[[str], str]) -> View | None:
    """Return a view in which each match of a pattern is the one character, or nothing, that it stands for."""
    parts: list[str] = []
    made = View("", [], [], [])
    done = size = 0

    def add(piece: str, start: int, end: int) -> None:
        nonlocal size
        made._starts.append(size)
        made._origins.append(view.start(start))
        made._widths.append(1 if len(piece) != 1 else view.end(end) - view.start(start))
        parts.append(piece)
        size += len(piece)

    for match in pattern.finditer(view.text):
        for inner in (done, *view.breaks(done, match.start())):
            following = view.breaks(inner, match.start())
            stop = following[0] if following else match.start()
            if stop > inner:
                add(view.text[inner:stop], inner, stop)
        if piece := read(match[0]):
            add(piece, match.start(), match.end())
        done = match.end()
    if not done:
        return None
    for inner in (done, *view.breaks(done, len(view.text))):
        following = view.breaks(inner, len(view.text))
        stop = following[0] if following else len(view.text)
        if stop > inner:
            add(view.text[inner:stop], inner, stop)
    made.text = "".join(parts)
    return made


def _read_escape(text: str) -> str:
    """Return the character for which an escape stands."""
    if text.startswith("%"):
        return chr(int(text[1:], 16))
    if text.startswith("&"):
        return html.unescape(text)
    if len(text) > 2 and text[1] in "ux":
        return chr(int(text[2:], 16))
    return _LETTERS.get(text[1], text[1])
