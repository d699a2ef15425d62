"""Entries of a pickled dump that repeat themselves: the first make patterns, by which later ones are taken whole."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ddpdoctor.gather.recorder.rows import Rows

MOST_PATTERNS = 2_000
"""Different calls of one dump that get a pattern of their own; further ones go the long way."""
PROBE = 100
"""Calls after which it is looked whether they repeat themselves."""
LONGEST_CYCLE, MOST_CYCLES = 16, 32
"""Calls that are taken in one step, and different cycles of a process."""
_INTEGER = rb"(?:K.|M..|J....|\x8a\x08.{8})"
_TEXT = rb"(?:h.|j....)"
_PLAIN = rb"(?:[N\x88\x89]|G.{8}|" + _INTEGER + rb"|" + _TEXT + rb")"
_LIST = rb"\](?:\((?:\](?:\((?:" + _INTEGER + rb")*e)?|" + _TEXT + rb")*e)?"
_VARYING = ("record_id", "op_id", "time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns",
            "duration_ms", "state", "retired", "collective_seq_id", "p2p_seq_id")  # fmt: skip
"""Keys whose values differ from one call to the next at the same place of the program
(torch/csrc/distributed/c10d/FlightRecorder.hpp)."""
_WANTED = ("collective_seq_id", "p2p_seq_id", "time_created_ns", "state", "retired")
_VALUES = {
    "collective_seq_id": _INTEGER,
    "p2p_seq_id": _INTEGER,
    "time_created_ns": rb"(?:N|" + _INTEGER + rb")",
    "state": _TEXT,
    "retired": rb"[\x88\x89]",
}


class Lane:
    """The pattern of one file's entries, and for each call that was seen a narrower one of its own.

    A training repeats itself: after a call comes most likely the one that came after it the last time. Its own pattern
    is nearly all literal and therefore tried first.
    """

    def __init__(self, entry: dict[str, Any], places: dict[str, int]) -> None:
        parts: list[tuple[str, bytes, bytes]] = []
        for key, value in entry.items():
            head = re.escape(_reference(places[key]))
            inner = _VALUES.get(key) or (_PLAIN if key in _VARYING else _pattern(value))
            parts.append((key, head, inner))
        self._parts = parts
        self._order = [key for key, _, _ in parts if key in _WANTED]
        self._usable = set(_WANTED) <= {key for key, _, _ in parts}
        body = b"".join(b"(" + head + b"(" + inner + b"))" for _, head, inner in parts)
        self._pattern = re.compile(rb"\}\(" + body + b"u", re.DOTALL)
        self._narrow: dict[int, re.Pattern[bytes]] = {}
        self._following: dict[int, int] = {}
        self._last = -1

    def learn(self, data: bytes, start: int, end: int, number: int) -> None:
        """Make a pattern of an entry that was read the long way."""
        found = self._pattern.fullmatch(data, start, end) if number >= 0 and self._usable else None
        if found is None:
            self._last = -1
            return
        self._following[self._last] = self._last = number
        if number in self._narrow or len(self._narrow) >= MOST_PATTERNS:
            return
        made = [rb"\}\("]
        for n, (key, head, inner) in enumerate(self._parts):
            if key in _WANTED:
                made.append(head + b"(" + inner + b")")
            else:
                made.append(head + inner if key in _VARYING else re.escape(found[2 * n + 1]))
        self._narrow[number] = re.compile(b"".join(made) + b"u", re.DOTALL)

    def run(self, data: bytes, position: int, rows: Rows, memo: dict[int, Any]) -> int:
        """Take entries from ``position`` as long as they are the ones that are expected; return where they end."""
        narrow, following, last = self._narrow, self._following, self._last
        raw: list[bytes] = []
        numbers: list[int] = []
        cycle: _Cycle | None = None
        probe = PROBE
        while True:
            number = following.get(last, -1)
            if cycle is not None and cycle.numbers[0] == number:
                found = cycle.pattern.match(data, position)
                if found is not None:
                    raw += found.groups()
                    numbers += cycle.numbers
                    position = found.end()
                    last = cycle.numbers[-1]
                    continue
                cycle = None
            pattern = narrow.get(number)
            found = pattern.match(data, position) if pattern is not None else None
            if found is None:
                break
            raw += found.groups()
            numbers.append(number)
            position = found.end()
            last = number
            if len(numbers) == probe:
                cycle, probe = self._find_cycle(numbers), 4 * probe
        self._last = last
        if numbers:
            width = len(self._order)
            rows.add_raw(numbers, {key: raw[n::width] for n, key in enumerate(self._order)}, memo)
        return position

    def _find_cycle(self, numbers: list[int]) -> _Cycle | None:
        """Return one pattern for the calls of a step, or of several, where the last ones repeat themselves."""
        for size in range(1, LONGEST_CYCLE + 1):
            if numbers[-size:] == numbers[-2 * size : -size] == numbers[-3 * size : -2 * size]:
                whole = numbers[-size:] * max(1, LONGEST_CYCLE // size)
                return _compile_cycle(whole, b"".join(self._narrow[number].pattern for number in whole))
        return None


@dataclass(frozen=True, slots=True)
class _Cycle:
    numbers: list[int]
    pattern: re.Pattern[bytes]


_cycles: dict[bytes, re.Pattern[bytes]] = {}


def _compile_cycle(numbers: list[int], pattern: bytes) -> _Cycle | None:
    """Compile a long pattern, which takes milliseconds: worth it where the dumps of other ranks have the same."""
    made = _cycles.get(pattern)
    if made is None:
        if len(_cycles) >= MOST_CYCLES:
            return None
        made = _cycles[pattern] = re.compile(pattern, re.DOTALL)
    return _Cycle(numbers, made)


def _reference(place: int) -> bytes:
    return b"h" + bytes([place]) if place < 256 else b"j" + place.to_bytes(4, "little")


def _pattern(value: Any) -> bytes:
    """Return the instructions that write a value of this kind."""
    if isinstance(value, bool) or value is None:
        return rb"[N\x88\x89]"
    if isinstance(value, list):
        return _LIST
    if isinstance(value, tuple):
        return (
            _TEXT * len(value) + (rb"\x85", rb"\x86", rb"\x87")[len(value) - 1]
            if 0 < len(value) < 4
            else rb"\)"
        )
    return _TEXT if isinstance(value, str) else _INTEGER if isinstance(value, int) else _PLAIN
