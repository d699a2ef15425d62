"""Characters of a terminal: what is harmless to print, how wide it is, and what to print without UTF-8."""

from __future__ import annotations

import unicodedata

_DIRECTIONAL = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C}
"""Directional controls (UAX 9, table 2-5): they make a line read other than it is."""
_BREAKS = {0x2028, 0x2029, 0xFEFF}
"""Line and paragraph separators, which some terminals obey, and the invisible byte order mark."""

ASCII = {
    "✓": "ok",
    "✖": "FAIL",
    "·": "-",
    "…": "...",
    "–": "-",
    "—": "-",
    "←": "<-",
    "→": "->",
    "×": "x",
    "µ": "u",
    "≥": ">=",
    "≤": "<=",
    "\u2018": "'",
    "\u2019": "'",
    "\u201c": '"',
    "\u201d": '"',
    "│": "|",
    "⋮": ":",
}
"""What stands for the signs that this program uses where only ASCII can be shown."""


def neutralise(text: str) -> str:
    """Return ``text`` on one line and without anything that a terminal would obey.

    Line breaks and tabs become spaces; escape and other control characters, directional controls and lone
    surrogates become visible escapes as in Python source.
    """
    if text.isprintable():
        return text
    return "".join(_show(character) for character in text)


def _show(character: str) -> str:
    number = ord(character)
    if character in "\n\r\t":
        return " "
    if number < 0x20 or 0x7F <= number < 0xA0:
        return f"\\x{number:02x}"
    if number in _DIRECTIONAL or number in _BREAKS or 0xD800 <= number < 0xE000:
        return f"\\u{number:04x}"
    return character


def to_ascii(text: str) -> str:
    """Return ``text`` in ASCII: known signs by their stand-ins, the rest escaped."""
    if text.isascii():
        return text
    replaced = "".join(ASCII.get(character, character) for character in text)
    return replaced.encode("ascii", "backslashreplace").decode("ascii")


def width_of(text: str) -> int:
    """Return the columns that ``text`` takes: wide East Asian characters two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(_width(character) for character in text)


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def wrap(text: str, width: int, *, first: int | None = None, dot: str | None = None) -> list[str]:
    """Break ``text`` at spaces into lines of at most ``width`` columns; longer words are cut.

    Args:
        text: on one line.
        width: columns.
        first: columns of the first line, where they differ.
        dot: break only after this sign between spaces, as far as what is between two fits into a line.

    Returns:
        At least one line; the first is empty where not even its first word fits.
    """
    lines: list[str] = []
    line, limit = "", width if first is None else first
    for word in _split(text, width, dot):
        for piece in _cut(word, width):
            if width_of(f"{line} {piece}" if line else piece) > limit:
                lines.append(line)
                line, limit = piece, width
            else:
                line = f"{line} {piece}" if line else piece
    return [*lines, line]


def _split(text: str, width: int, dot: str | None) -> list[str]:
    if dot is None:
        return text.split()
    parts = text.split(f" {dot} ")
    parts[:-1] = [f"{part} {dot}" for part in parts[:-1]]
    return [word for part in parts for word in ([part] if width_of(part) <= width else part.split())]


def _cut(word: str, width: int) -> list[str]:
    if width_of(word) <= width:
        return [word]
    pieces, piece = [], ""
    for character in word:
        if piece and width_of(piece) + _width(character) > width:
            pieces.append(piece)
            piece = ""
        piece += character
    return [*pieces, piece]


def clip(text: str, width: int, mark: str = "…") -> str:
    """Return at most ``width`` columns of ``text``, ending in ``mark`` where something was cut."""
    if width_of(text) <= width:
        return text
    kept = ""
    for character in text:
        if width_of(kept) + _width(character) + width_of(mark) > width:
            break
        kept += character
    return kept + mark
