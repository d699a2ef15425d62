"""What ranks wrote down of seeds, folded to `ddpdoctor.evidence.training.seedings`."""

from __future__ import annotations

from collections.abc import Mapping

from ddpdoctor.evidence import Frame
from ddpdoctor.evidence.training.seedings import Seeding
from ddpdoctor.facts.training_events import Seed
from ddpdoctor.watch.readers.agreement import fold_texts
from ddpdoctor.watch.readers.records import Shortener

KINDS = frozenset({"seed"})
"""Events that tell of it."""
KEPT = 40
"""Lines that are kept."""


def fold_seeds(ranks: Mapping[int, list[Seed]], shorten: Shortener) -> tuple[Seeding, ...]:
    """Return the lines that seeded torch, in the order in which ranks came to them.

    Args:
        ranks: Rank -> its events of `KINDS`.
        shorten: Names files and reads source lines.
    """
    rows: dict[tuple[Frame, ...], tuple[dict[int, str], list[bool]]] = {}
    for rank, events in ranks.items():
        for event in events:
            values, trained = rows.setdefault(shorten.frames(event.get("frames")), ({}, []))
            values.setdefault(rank, str(event["value"]))
            trained.append(bool(event["trained"]))
    return tuple(
        Seeding(fold_texts(values), any(trained), frames)
        for frames, (values, trained) in list(rows.items())[:KEPT]
    )
