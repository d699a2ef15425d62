"""Which lines of a stretch of a log are worth a search: most lines of a training log differ in numbers only.

A line's shape is what is left of it without digits, signs and the letters a to f, of which hexadecimal numbers are
made. Whatever a log is searched for has a shape too, and stands in a line only where its shape stands in the line's.
So a shape that holds none of these is judged once, and every line of that shape is passed over from then on.
"""

from __future__ import annotations

import functools
import re

from ddpdoctor.aftermath.notable import SEARCHED
from ddpdoctor.evidence.texts.matching import holds_gate, list_gates

_KEPT = b"\n" + bytes(range(ord("A"), ord("Z") + 1)) + bytes(range(ord("g"), ord("z") + 1))
_DROPPED = bytes(each for each in range(256) if each not in _KEPT)
BEFORE, BEHIND = 8, 4
"""Lines around one that is worth it that are read with it: a syntax error's place stands before its name, what NCCL
says of an error behind it."""
MOST = 4 << 20
"""Bytes of shapes that are remembered."""
SHARE = 0.25
"""Share of a stretch from which on it is read whole."""
PAUSE = 15
"""Stretches that are read whole after one of which hardly any line had a known shape."""


def _reduce(text: bytes) -> bytes:
    return text.translate(None, _DROPPED)


def _join(literals: set[bytes]) -> re.Pattern[bytes]:
    """Return the search for any of some literals; one that holds another is not needed."""
    short = sorted((each for each in literals if each), key=lambda each: (len(each), each))
    least = [each for i, each in enumerate(short) if not any(other in each for other in short[:i])]
    return re.compile(b"|".join(re.escape(each) for each in least))


@functools.cache
def _find_shapes(more: tuple[bytes, ...]) -> re.Pattern[bytes]:
    return _join({_reduce(each) for each in (*list_gates(), *SEARCHED, *more)})


class ShapeReader:
    """Remembers the shapes of one log that are not worth a search."""

    def __init__(self, triggers: tuple[bytes, ...]) -> None:
        self._gates = _find_shapes(triggers)
        self._words = (*triggers, *SEARCHED)
        self._boring: set[bytes] = set()
        self._telling: set[bytes] = set()
        self._size = 0
        self._pause = 0

    def find(self, data: bytes) -> list[tuple[int, int, int]] | None:
        """Return the parts that are worth it: first line, counted from 0, start and end; None where all of it is.

        Args:
            data: a stretch that begins and ends with a line.
        """
        if self._pause:
            self._pause -= 1
            return None
        shapes = _reduce(data).split(b"\n")
        there = set(shapes) - self._boring
        new = there - self._telling
        size = sum(map(len, new))
        if 4 * size > len(data):
            self._pause = PAUSE
            return None
        if self._size + size > MOST:
            self._boring.clear()
            self._telling.clear()
            self._size = 0
        self._size += size
        if new and self._gates.search(b"\n".join(new)):
            self._telling |= {shape for shape in new if self._gates.search(shape)}
        self._boring |= new - self._telling
        there -= self._boring
        return self._cut(data, shapes, there) if there else []

    def _cut(
        self, data: bytes, shapes: list[bytes], telling: set[bytes]
    ) -> list[tuple[int, int, int]] | None:
        """Return the parts around lines of some shapes that hold what is searched for; None where they are most."""
        near = [number for number, shape in enumerate(shapes) if shape in telling]
        if len(near) > SHARE * len(shapes):
            return None
        lines = data.split(b"\n")
        ranges: list[list[int]] = []
        for number in near:
            line = lines[number]
            if not holds_gate(line) and not any(word in line for word in self._words):
                continue
            first, last = max(0, number - BEFORE), number + BEHIND
            if ranges and first <= ranges[-1][1]:
                ranges[-1][1] = last
            else:
                ranges.append([first, last])
        if sum(last - first for first, last in ranges) > SHARE * len(shapes):
            return None
        found, position, at = [], 0, 0
        for first, last in ranges:
            position += sum(map(len, lines[at:first])) + first - at
            end = position + sum(map(len, lines[first : last + 1])) + last + 1 - first
            found.append((first, position, min(end, len(data))))
            position, at = end, last + 1
        return found
