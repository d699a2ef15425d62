"""Words for sentences: lists of names, counts, sizes, ages, and tables of value -> who has it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ddpdoctor.evidence import RankSet
from ddpdoctor.text.shell import quote_word

FEW = 6
"""Names that a sentence lists; more are counted. ``details`` of a finding always hold them all."""

UNSET = "not set"
"""How a variable that is not there is shown in a table of values."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

K = TypeVar("K", bound=Hashable)


def join_words(words: Iterable[str], *, few: int = FEW, last: str = "and") -> str:
    """Return ``a, b and c``; of more than ``few`` words ``a, b, … and 7 more``; empty for none."""
    listed = list(words)
    if len(listed) > few:
        return f"{', '.join(listed[: few - 1])} {last} {len(listed) - few + 1:,} more"
    if len(listed) < 2:
        return "".join(listed)
    return f"{', '.join(listed[:-1])} {last} {listed[-1]}"


def capitalise(text: str) -> str:
    """Return a text for the beginning of a sentence: only its first letter changes."""
    return text[:1].upper() + text[1:]


def count_of(number: int, noun: str, plural: str | None = None) -> str:
    """Return ``1 rank``, ``4 ranks``, ``16,384 ranks``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def choose_form(number: int, one: str, several: str) -> str:
    """Return the verb or pronoun that fits ``number``."""
    return one if number == 1 else several


def format_bytes(number: float) -> str:
    """Return a size with a binary unit and at most one decimal: ``64 MiB``, ``1.5 GiB``."""
    size = float(number)
    for unit in _UNITS[:-1]:
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if size == int(size) or unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"


def format_age(seconds: float) -> str:
    """Return a duration as one reads it aloud: ``40 s``, ``12 min``, ``3.5 h``, ``2 days``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} days"


def format_number(number: float) -> str:
    """Return a number without a needless fraction: ``2``, ``1.5``."""
    return f"{number:,.1f}".removesuffix(".0")


def quote(value: str, limit: int = 60) -> str:
    """Return a value as it would be typed in a shell, cut to ``limit`` characters for a sentence."""
    shown = value if len(value) <= limit else value[: limit - 1] + "…"
    return quote_word(shown)


@dataclass(frozen=True, slots=True)
class ValueGroup:
    """One value and who has it."""

    value: str | None
    """None: those who do not have it at all."""
    who: RankSet

    @property
    def text(self) -> str:
        """The value for a sentence."""
        return UNSET if self.value is None else repr(self.value)


def fold_values(values: Mapping[int, str | None]) -> tuple[ValueGroup, ...]:
    """Fold number -> value into value -> numbers, the largest group first, then the lowest number.

    Args:
        values: by rank or by node.
    """
    groups: dict[str | None, list[int]] = {}
    for number, value in values.items():
        groups.setdefault(value, []).append(number)
    folded = [ValueGroup(value, RankSet(who)) for value, who in groups.items()]
    return tuple(sorted(folded, key=lambda group: (-len(group.who), group.who.ranges[:1])))


def find_minority(groups: Sequence[ValueGroup]) -> RankSet:
    """Return those who differ from the largest group; everybody where no group is larger than the next.

    With two ranks, or with a tie, it cannot be told who is right.
    """
    return find_odd([group.who for group in groups])


def find_odd(parts: Sequence[RankSet]) -> RankSet:
    """Return those outside of the largest part; all where no part is larger than the next, none of less than two."""
    if len(parts) < 2:
        return RankSet()
    largest, *others = sorted(parts, key=len, reverse=True)
    tied = len(largest) == len(others[0])
    return RankSet().union(*(parts if tied else others))


def describe_counts(counts: Mapping[int, int], noun: str, plural: str | None = None) -> str:
    """Return ``7 steps on rank 1 and 8 steps on ranks 0, 2-3``, of counts by rank."""
    groups: dict[int, list[int]] = {}
    for rank, count in counts.items():
        groups.setdefault(count, []).append(rank)
    return join_words(
        f"{count_of(count, noun, plural)} on {name_set(RankSet(ranks))}"
        for count, ranks in sorted(groups.items())
    )


def describe_groups(groups: Sequence[ValueGroup], noun: str = "rank", few: int = FEW) -> str:
    """Return ``'a' on ranks 0-2 and not set on rank 3``."""
    parts = [f"{group.text} on {name_set(group.who, noun)}" for group in groups]
    return join_words(parts, few=few)


def name_set(numbers: RankSet, noun: str = "rank", few: int = 12) -> str:
    """Return ``rank 3``, ``ranks 0-2, 4``; many scattered ones are counted and only the first are listed."""
    if len(numbers.ranges) > few:
        return f"{count_of(len(numbers), noun)} ({RankSet.from_ranges(numbers.ranges[:few]).listed()} …)"
    return f"{noun if len(numbers) == 1 else noun + 's'} {numbers.listed()}" if numbers else f"no {noun}"


def name_all(count: int) -> str:
    """Return the first words of a sentence on all ranks of a job of several: ``Both ranks``, ``All 8 ranks``."""
    return "Both ranks" if count == 2 else f"All {count:,} ranks"


def tabulate(groups: Sequence[ValueGroup]) -> list[dict[str, str | None]]:
    """Return a table for ``details``: rows of ``value`` (None: not set) and ``who``, e.g. ``0-2,4``."""
    return [{"value": group.value, "who": str(group.who)} for group in groups]


def format_milliseconds(seconds: float) -> str:
    """Return a time in milliseconds, to three figures where it is short."""
    return f"{seconds * 1e3:,.0f}" if seconds >= 0.1 else f"{seconds * 1e3:.3g}"
