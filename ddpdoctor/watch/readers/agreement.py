"""Who agrees with whom: what ranks wrote of the same thing, grouped by what they wrote."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, TypeVar

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.training.shares import Share

K = TypeVar("K", bound=Hashable)
Prints = dict[str, tuple[list[int], float | None]]
"""Digest -> ranks that have it, and the norm that goes with it."""


def group_ranks(pairs: Iterable[tuple[K, int]]) -> dict[K, list[int]]:
    """Return the ranks of each key, keys and ranks in the order in which they come."""
    groups: dict[K, list[int]] = {}
    for key, rank in pairs:
        groups.setdefault(key, []).append(rank)
    return groups


def note_print(into: Prints, found: Any, rank: int) -> None:
    """Put a rank to what it wrote of a tensor, a digest and a norm; None where it wrote nothing of it."""
    if found is not None:
        norm = float(found[1]) if found[1] is not None else None
        into.setdefault(str(found[0]), ([], norm))[0].append(rank)


def order_shares(groups: Prints) -> tuple[Share, ...]:
    """Return who has the same, the most first."""
    shares = [Share(digest, RankSet(who), norm) for digest, (who, norm) in groups.items()]
    return tuple(sorted(shares, key=lambda share: (-len(share.ranks), share.ranks.ranges)))


def fold_texts(texts: Mapping[int, str]) -> tuple[Share, ...]:
    """Return which ranks wrote the same text, the most first."""
    groups = group_ranks((text, rank) for rank, text in texts.items())
    return order_shares({text: (who, None) for text, who in groups.items()})


def fold_field(events: Mapping[int, Mapping[str, Any]], name: str) -> tuple[Share, ...]:
    """Return which ranks have the same in a field of their events, where they have it."""
    return fold_texts(
        {rank: str(event[name]) for rank, event in events.items() if event.get(name) is not None}
    )
