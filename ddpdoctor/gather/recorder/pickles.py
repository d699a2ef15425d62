"""Flight Recorder dumps in their pickled form, read without unpickling.

A pickle is a program. Python's own unpickler, even with an allow-list, still runs it: numbers in it decide how much
memory is taken. This module reads the plain part of the language only (numbers, texts, lists, dictionaries, references)
with limits of its own, and stops at the first instruction that would call or import something.

torch writes each entry with the same instructions in the same order. After the first entries a pattern is made of
them, and entries that fit it are taken in one step each; whatever does not fit goes the long way.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import Any

from ddpdoctor.gather.recorder.lanes import Lane
from ddpdoctor.gather.recorder.rows import Rows

MOST_STEPS = 4_000_000
"""Instructions that are followed one by one: a dump of 2,000 entries has some 100,000 at most; each makes at most one
object, so this bounds the memory."""
MOST_LANES = 8
"""Different orders of keys in the entries of one dump."""
MOST_TEXT = 64 << 10
"""Characters of one text; torch's longest are names of files."""


class NotPlain(ValueError):
    """The file is no dump of plain data, and why."""


class _Mark:
    """Where on the stack a list or a dictionary begins."""


_MARK = _Mark()


def read_pickle(data: bytes, rows: Rows) -> dict[str, Any]:
    """Read a dump.

    Args:
        data: the whole file.
        rows: gets its entries.

    Returns:
        The dump without its entries.

    Raises:
        NotPlain: it asks for code, is cut off, too large, or no dictionary.
    """
    try:
        found = _Machine(data, rows).run()
    except (IndexError, struct.error, TypeError, KeyError, AttributeError) as problem:
        raise NotPlain("is a damaged pickle") from problem
    except (UnicodeDecodeError, OverflowError) as problem:
        raise NotPlain(f"is a damaged pickle ({type(problem).__name__})") from problem
    if not isinstance(found, dict):
        raise NotPlain("is a pickle of something else")
    return found


class _Machine:
    """Follows the instructions of one pickle."""

    def __init__(self, data: bytes, rows: Rows) -> None:
        self._data = data
        self._rows = rows
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._places: dict[str, int] = {}
        """Text -> its reference."""
        self._starts: list[int] = []
        """Where the dictionaries that are being read begin."""
        self._lanes: dict[tuple[str, ...], Lane] = {}
        """Lane of each order of keys: entries that have ended may have a duration."""
        self._configured = False

    def run(self) -> Any:
        data, position, steps = self._data, 0, 0
        stack, memo = self._stack, self._memo
        while True:
            steps += 1
            if steps > MOST_STEPS:
                raise NotPlain(f"is a pickle of more than {MOST_STEPS:,} steps")
            if position >= len(data):
                raise NotPlain("is truncated")
            code = data[position]
            if code == 0x68:  # BINGET: every second instruction of a dump
                stack.append(memo[data[position + 1]])
                position += 2
                continue
            if code == 0x28:  # MARK
                stack.append(_MARK)
                position += 1
                continue
            if code == 0x2E:  # STOP
                return self._stack.pop()
            if code == 0x7D:  # EMPTY_DICT
                self._starts.append(position)
                self._stack.append({})
                position += 1
                continue
            if code == 0x75:  # SETITEMS
                position = self._set_items(position)
                continue
            step = _STEPS.get(code)
            if step is None:
                raise NotPlain(_refuse(code))
            position = step(self, position + 1)

    def _set_items(self, position: int) -> int:
        items = self.take_marked()
        made = self._stack[-1]
        start = self._starts.pop() if self._starts else position
        if type(made) is not dict or len(items) % 2:
            raise NotPlain("is a damaged pickle")
        for n in range(0, len(items), 2):
            if type(items[n]) is not str:
                raise NotPlain("is a pickle of something else")
            made[items[n]] = items[n + 1]
        position += 1
        if "profiling_name" not in made or "collective_seq_id" not in made:
            return position
        if not self._configured:
            self._configure()
        number = self._rows.take(made)
        self._stack[-1] = None  # what was taken need not be kept
        keys = tuple(made)
        lane = self._lanes.get(keys)
        if lane is None:
            if len(self._lanes) >= MOST_LANES or any(key not in self._places for key in keys):
                return position
            lane = self._lanes[keys] = Lane(made, self._places)
        lane.learn(self._data, start, position, number)
        return lane.run(self._data, position, self._rows, self._memo)

    def _configure(self) -> None:
        """Hand over what stands before the first entry on groups: it lies on the stack still."""
        self._configured = True
        for key, value in itertools.pairwise(self._stack):
            if type(key) is str and key == "pg_config":
                self._rows.set_groups(value)

    def take_marked(self) -> list[Any]:
        """Take from the stack what lies above the last mark."""
        stack = self._stack
        place = len(stack) - 1
        while stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise NotPlain("is a damaged pickle")
        items = stack[place + 1 :]
        del stack[place:]
        return items

    def put(self, place: int) -> None:
        value = self._stack[-1]
        if value is _MARK:
            raise NotPlain("is a damaged pickle")
        self._memo[place] = value
        if type(value) is str:
            self._places.setdefault(value, place)

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise NotPlain("is a damaged pickle")
        return value

    def get(self, place: int) -> None:
        self._stack.append(self._memo[place])

    def text(self, start: int, size: int) -> int:
        if size > MOST_TEXT:
            raise NotPlain(f"contains a string of {size:,} bytes")
        raw = self._data[start : start + size]
        if len(raw) < size:
            raise NotPlain("is truncated")
        self._stack.append(raw.decode("utf-8", "replace"))
        return start + size

    def number(self, start: int, size: int, form: str) -> int:
        self._stack.append(struct.unpack_from(form, self._data, start)[0])
        return start + size

    def long(self, start: int) -> int:
        size = self._data[start]
        if size > 16:
            raise NotPlain(f"contains a number of {size} bytes")
        raw = self._data[start + 1 : start + 1 + size]
        if len(raw) < size:
            raise NotPlain("is truncated")
        self._stack.append(int.from_bytes(raw, "little", signed=True))
        return start + 1 + size

    def append(self, items: list[Any]) -> None:
        made = self._stack[-1]
        if type(made) is not list:
            raise NotPlain("is a damaged pickle")
        made += items

    def push_tuple(self, items: list[Any]) -> None:
        self._stack.append(tuple(items))

    def unsigned(self, start: int, size: int) -> int:
        raw = self._data[start : start + size]
        if len(raw) < size:
            raise NotPlain("is truncated")
        return int.from_bytes(raw, "little")

    def count(self) -> int:
        return len(self._memo)


Step = Callable[[_Machine, int], int]


def _simple(act: Callable[[_Machine], None]) -> Step:
    def step(machine: _Machine, start: int) -> int:
        act(machine)
        return start

    return step


def _put(size: int) -> Step:
    def step(machine: _Machine, start: int) -> int:
        machine.put(machine.unsigned(start, size))
        return start + size

    return step


def _get(size: int) -> Step:
    def step(machine: _Machine, start: int) -> int:
        machine.get(machine.unsigned(start, size))
        return start + size

    return step


def _text(size: int) -> Step:
    return lambda machine, start: machine.text(start + size, machine.unsigned(start, size))


def _number(size: int, form: str) -> Step:
    return lambda machine, start: machine.number(start, size, form)


def _skip(size: int) -> Step:
    return lambda machine, start: start + size


def _tuple(size: int) -> Step:
    def act(machine: _Machine) -> None:
        items = [machine.pop() for _ in range(size)]
        machine.push_tuple(items[::-1])

    return _simple(act)


def _set_item(machine: _Machine) -> None:
    value, key = machine.pop(), machine.pop()
    made = machine.pop()
    if type(made) is not dict or type(key) is not str:
        raise NotPlain("is a pickle of something else")
    made[key] = value
    machine.push(made)


_STEPS: dict[int, Step] = {
    0x80: _skip(1),  # PROTO
    0x95: _skip(8),  # FRAME
    0x5D: _simple(lambda machine: machine.push([])),
    0x29: _simple(lambda machine: machine.push(())),
    0x4E: _simple(lambda machine: machine.push(None)),
    0x88: _simple(lambda machine: machine.push(True)),
    0x89: _simple(lambda machine: machine.push(False)),
    0x65: _simple(lambda machine: machine.append(machine.take_marked())),  # APPENDS
    0x61: _simple(lambda machine: machine.append([machine.pop()])),  # APPEND
    0x73: _simple(_set_item),  # SETITEM
    0x74: _simple(lambda machine: machine.push_tuple(machine.take_marked())),
    0x85: _tuple(1),
    0x86: _tuple(2),
    0x87: _tuple(3),
    0x4B: _number(1, "<B"),
    0x4D: _number(2, "<H"),
    0x4A: _number(4, "<i"),
    0x47: _number(8, ">d"),
    0x8A: lambda machine, start: machine.long(start),  # LONG1
    0x58: _text(4),  # BINUNICODE
    0x8C: _text(1),  # SHORT_BINUNICODE
    0x71: _put(1),
    0x72: _put(4),
    0x94: _simple(lambda machine: machine.put(machine.count())),  # MEMOIZE
    0x6A: _get(4),
}
"""The plain instructions (Lib/pickletools.py): none calls, imports or asks for memory by a number."""
_CALLING = frozenset(b"cR\x81b\x92io\x93PQ\x82\x83\x84")
"""Those that import, call or build (GLOBAL, REDUCE, NEWOBJ, BUILD…)."""


def _refuse(code: int) -> str:
    if code in _CALLING:
        return "is a pickle that would run code: it was not loaded"
    return f"is a pickle of another kind (instruction 0x{code:02x})"
