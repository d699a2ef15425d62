"""What ranks wrote down of checkpoints that they loaded, folded to `ddpdoctor.evidence.training.loads`."""

from __future__ import annotations

from collections.abc import Mapping

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.training.loads import EmptyLoad
from ddpdoctor.facts.training_events import LoadEvent
from ddpdoctor.watch.readers.records import Shortener

KINDS = frozenset({"load", "loaded"})
"""Events that tell of it."""
KEPT = 20
"""Calls that are kept."""


def fold_loads(ranks: Mapping[int, list[LoadEvent]], shorten: Shortener) -> tuple[EmptyLoad, ...]:
    """Return the calls that loaded nothing, and after which nothing was loaded into the same module.

    Args:
        ranks: Rank -> its events of `KINDS`.
        shorten: Names files and reads source lines.
    """
    rows: dict[tuple[str, str, bool, str, int, tuple[Frame, ...]], list[int]] = {}
    for rank, events in ranks.items():
        healed = {int(event["number"]) for event in events if event["event"] == "loaded"}
        for event in events:
            if event["event"] == "load" and int(event["number"]) not in healed:
                key = (
                    str(event["class"]),
                    str(event["prefix"]),
                    bool(event["extra"]),
                    str(event["name"]),
                    int(event["count"]),
                    shorten.frames(event.get("frames")),
                )
                rows.setdefault(key, []).append(rank)
    return tuple(EmptyLoad(RankSet(who), *key) for key, who in list(rows.items())[:KEPT])
