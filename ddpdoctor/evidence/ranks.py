"""Sets of ranks, kept as ranges so that sixteen thousand ranks cost as much as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

LARGEST_RANK = 1 << 20
"""Ranks, sizes of worlds and numbers of nodes and restarts are counted up to: none in a file is larger."""


class RankSet:
    """An immutable, ordered set of non-negative ranks, stored as closed ranges.

    The text form is the usual one, ``"0-2,4"``; it is what JSON evidence holds.
    """

    __slots__ = ("ranges",)

    ranges: tuple[tuple[int, int], ...]

    def __init__(self, ranks: Iterable[int] = ()) -> None:
        self.ranges = _fold(ranks)

    @classmethod
    def from_ranges(cls, ranges: Iterable[tuple[int, int]]) -> RankSet:
        """Build from closed ranges in any order; overlapping and touching ones are joined."""
        made = cls.__new__(cls)
        made.ranges = _join(sorted(ranges))
        return made

    @classmethod
    def span(cls, count: int) -> RankSet:
        """Return ranks 0 to ``count - 1``."""
        return cls.from_ranges([(0, count - 1)] if count > 0 else [])

    @classmethod
    def parse(cls, text: str) -> RankSet:
        """Read the text form.

        Raises:
            ValueError: the text is not of the form ``"0-2,4"``, or a rank is larger than `LARGEST_RANK`.
        """
        ranges: list[tuple[int, int]] = []
        for part in filter(None, text.split(",")):
            low, _, high = part.partition("-")
            ranges.append((int(low), int(high or low)))
            if ranges[-1][1] > LARGEST_RANK:
                raise ValueError(f"no job has a rank {ranges[-1][1]}")
        return cls.from_ranges(ranges)

    def union(self, *others: RankSet) -> RankSet:
        """Return the ranks that are in any of the sets."""
        return RankSet.from_ranges([r for each in (self, *others) for r in each.ranges])

    def minus(self, other: RankSet) -> RankSet:
        """Return the ranks of this set that are not in ``other``."""
        drop = set(other)
        return RankSet(rank for rank in self if rank not in drop)

    def __iter__(self) -> Iterator[int]:
        for low, high in self.ranges:
            yield from range(low, high + 1)

    def __len__(self) -> int:
        return sum(high - low + 1 for low, high in self.ranges)

    def __contains__(self, rank: object) -> bool:
        return isinstance(rank, int) and any(low <= rank <= high for low, high in self.ranges)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RankSet) and self.ranges == other.ranges

    def __hash__(self) -> int:
        return hash(self.ranges)

    def __str__(self) -> str:
        return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in self.ranges)

    def __repr__(self) -> str:
        return f"RankSet.parse({str(self)!r})"

    def listed(self) -> str:
        """Return the numbers for a sentence: ``0-2, 4``."""
        return str(self).replace(",", ", ")

    def phrase(self) -> str:
        """Return words for a sentence: ``rank 3`` or ``ranks 0-2, 4``; ``no rank`` when empty."""
        if not self.ranges:
            return "no rank"
        return f"rank {self}" if len(self) == 1 else f"ranks {self.listed()}"


def _fold(ranks: Iterable[int]) -> tuple[tuple[int, int], ...]:
    return _join([(rank, rank) for rank in sorted(set(ranks))])


def _join(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    joined: list[tuple[int, int]] = []
    for low, high in ranges:
        if low < 0 or high < low:
            raise ValueError(f"not a range of ranks: {low}-{high}")
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return tuple(joined)
