"""What ranks wrote down of how a model is shared out: which of them hold the same piece of a tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ddpdoctor.evidence import RankSet
from ddpdoctor.facts import strategies
from ddpdoctor.watch.readers.agreement import Prints, group_ranks

_PIECES = "piece"
"""What stands for the digests of ranks that agree with all that hold the same piece."""


def list_axes(
    tables: Iterable[Mapping[str, Any]], steps: Iterable[Mapping[str, Any]]
) -> list[tuple[str, str, list[int]]]:
    """Return strategy, name and ranks of each set of ranks that events tell of, those of wrappers included.

    Args:
        tables: of tensors.
        steps: looks at steps.
    """
    found: list[tuple[str, str, list[int]]] = []
    for table in tables:
        for each in table.get("wrappers") or ():
            found.append((strategies.DDP.name, "", [int(rank) for rank in each.get("ranks") or ()]))
        for how, name, members in (table.get("layout") or {}).get("axes") or ():
            found.append((str(how), str(name)[:80], [int(rank) for rank in members]))
    for step in steps:
        found += [
            (strategies.BY_HAND.name, "", [int(rank) for rank in ranks])
            for ranks in step.get("averaged") or ()
        ]
    return [each for each in found if len(each[2]) > 1]


def read_pieces(table: Mapping[str, Any]) -> dict[int, str]:
    """Return the piece of each sharded tensor that a rank holds, by the tensor's place."""
    told = (table.get("layout") or {}).get("pieces") or ()
    return {int(place): str(piece) for piece, places in told for place in places}


def list_peers(pieces: Mapping[int, object]) -> tuple[RankSet, ...]:
    """Return the ranks whose pieces are equal; nothing where none has a piece."""
    if not any(pieces.values()):
        return ()
    groups = group_ranks((repr(piece), rank) for rank, piece in pieces.items())
    return tuple(RankSet(ranks) for ranks in groups.values())


def tell_apart(found: Prints, peers: Sequence[RankSet]) -> Prints:
    """Return who has the same among peers: those that agree with all of theirs are told to have the same."""
    if not peers:
        return found
    told: Prints = {}
    for group in peers:
        own = {
            digest: ([rank for rank in ranks if rank in group], norm)
            for digest, (ranks, norm) in found.items()
        }
        held = {digest: row for digest, row in own.items() if row[0]}
        for digest, (ranks, norm) in held.items():
            key, size = (_PIECES, None) if len(held) == 1 else (digest, norm)
            told.setdefault(key, ([], size))[0].extend(ranks)
    return told
