"""What ranks wrote down of checkpoints that they loaded, folded to `ddpdoctor.evidence.training.loads`."""

from __future__ import annotations

from collections.abc import Mapping

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.training.loads import EmptyLoad, LateLoad
from ddpdoctor.facts.training_events import LoadEvent
from ddpdoctor.watch.readers.agreement import fold_texts
from ddpdoctor.watch.readers.records import Shortener

KINDS = frozenset({"load", "loaded", "restored"})
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


def fold_late_loads(ranks: Mapping[int, list[LoadEvent]], shorten: Shortener) -> tuple[LateLoad, ...]:
    """Return the lines that loaded into an optimizer, or a model after it was wrapped, in the order of the ranks.

    Args:
        ranks: Rank -> its events of `KINDS`.
        shorten: Names files and reads source lines.
    """
    rows: dict[tuple[int, str, tuple[Frame, ...]], dict[int, list[tuple[str, int]]]] = {}
    for rank, events in ranks.items():
        for event in events:
            if event["event"] == "restored":
                key = int(event["wrapper"]), str(event["class"]), shorten.frames(event.get("frames"))
                told = str(event["print"]), int(event["forwards"])
                rows.setdefault(key, {}).setdefault(rank, []).append(told)
    return tuple(_compare(*key, made) for key, made in list(rows.items())[:KEPT])


def _compare(
    wrapper: int, target: str, frames: tuple[Frame, ...], made: Mapping[int, list[tuple[str, int]]]
) -> LateLoad:
    """Return what ranks loaded at one line.

    Args:
        wrapper: into which.
        target: of which class.
        frames: of the line.
        made: Rank -> for each of its loads a number for what it held then, empty where that could not be read, and the
            forwards before.
    """
    ranks, count = RankSet(made), max(map(len, made.values()))
    for number in range(min(map(len, made.values()))):
        held = fold_texts({rank: told for rank, loads in made.items() if (told := loads[number][0])})
        if len(held) > 1:
            forwards = min(loads[number][1] for loads in made.values())
            return LateLoad(ranks, wrapper, target, count, forwards, held, frames)
    forwards = min(loads[0][1] for loads in made.values())
    return LateLoad(ranks, wrapper, target, count, forwards, frames=frames)
