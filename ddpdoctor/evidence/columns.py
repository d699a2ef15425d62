"""Columns of integers, kept as machine words: two million of them are 16 MB and not 80."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator


class Numbers:
    """An immutable sequence of signed 64-bit integers.

    JSON holds the first number and then the differences, since sequence numbers and times grow by little.
    """

    __slots__ = ("_items",)

    _items: array[int]

    def __init__(self, items: Iterable[int] = ()) -> None:
        """Take numbers; OverflowError where one has more than 64 bits."""
        self._items = items if isinstance(items, array) and items.typecode == "q" else array("q", items)

    @classmethod
    def from_differences(cls, data: Iterable[int]) -> Numbers:
        """Read what `differences` gave.

        Raises:
            TypeError: something that is no integer.
            ValueError: a number has more than 64 bits.
        """
        try:
            return cls(itertools.accumulate(data))
        except OverflowError as problem:
            raise ValueError(f"not a column of numbers: {problem}") from problem

    def differences(self) -> list[int]:
        """Return the first number, then what each has more than the one before."""
        items = self._items
        return [items[0], *(after - before for before, after in itertools.pairwise(items))] if items else []

    def part(self, start: int, stop: int | None = None) -> Numbers:
        """Return the numbers from ``start`` to before ``stop``, as in a slice."""
        return Numbers(self._items[start:stop])

    def to_bytes(self) -> bytes:
        """Return the numbers as they lie in memory; equal for equal columns on one machine."""
        return self._items.tobytes()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[int]:
        return iter(self._items)

    def __getitem__(self, place: int) -> int:
        return self._items[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Numbers) and self._items == other._items

    def __repr__(self) -> str:
        shown = ", ".join(map(str, self._items[:4]))
        return f"Numbers([{shown}{', …' if len(self) > 4 else ''}])"
