"""What ranks wrote down of how they use DistributedDataParallel, folded to `ddpdoctor.evidence.training.syncs`."""

from __future__ import annotations

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.training.syncs import (
    Gathered,
    PaceLook,
    Replicated,
    SearchLook,
    Syncs,
    Unenclosed,
    Unfollowed,
)
from ddpdoctor.facts.training_events import Search, SyncEvent
from ddpdoctor.watch.readers.records import Shortener

KINDS = frozenset({"pace", "search", "unenclosed", "unfollowed", "data-parallel", "gathered"})
"""Events that tell of it."""
KEPT = 40
"""Looks at the pace."""

Events = dict[int, list[SyncEvent]]
"""Rank -> its events of `KINDS`."""


def fold_syncs(ranks: Events, shorten: Shortener) -> Syncs:
    """Return what the ranks of a node wrote.

    Args:
        ranks: Their events.
        shorten: Names files and reads source lines.
    """
    return Syncs(
        paces=tuple(_fold_paces(ranks))[:KEPT],
        searches=tuple(_fold_searches(ranks)),
        unenclosed=tuple(_fold_unenclosed(ranks, shorten)),
        unfollowed=tuple(_fold_unfollowed(ranks, shorten))[:KEPT],
        replicated=tuple(_fold_replicated(ranks, shorten)),
        gathered=tuple(_fold_gathered(ranks, shorten)),
    )


def _fold_paces(ranks: Events) -> list[PaceLook]:
    rows: dict[tuple[int, ...], list[int]] = {}
    for rank, events in ranks.items():
        for event in events:
            if event["event"] == "pace":
                row = (event["number"], event["step"], event["steps"], event["backwards"])
                more = (event["kept"], event["synced"], event["alone"])
                rows.setdefault(tuple(int(each) for each in (*row, *more)), []).append(rank)
    return [
        PaceLook(row[0], RankSet(who), *row[1:])
        for row, who in sorted(rows.items(), key=lambda each: (each[0][1], each[0]))
    ]


def _fold_searches(ranks: Events) -> list[SearchLook]:
    seen: dict[int, dict[int, set[int]]] = {}
    last: dict[int, dict[int, Search]] = {}
    for rank, events in ranks.items():
        for event in events:
            unused = event.get("unused") if event["event"] == "search" else None
            if event["event"] == "search" and unused is not None:
                number, iteration = int(event["number"]), int(event["iteration"])
                seen.setdefault(number, {}).setdefault(iteration, set()).add(int(unused))
                last.setdefault(number, {})[rank] = event
    return [
        SearchLook(
            number,
            RankSet(last[number]),
            len(found),
            sum(max(sizes) > 0 for sizes in found.values()),
            max(found),
            len(set().union(*found.values())) == 1,
            *_time_search(list(last[number].values())),
        )
        for number, found in sorted(seen.items())
    ]


def _time_search(events: list[Search]) -> tuple[int, float | None, float | None]:
    """Return how many searches were timed, what one took and how far apart they were, where it took longest."""
    timed = [
        (int(each), int(apart), int(event["timed"]))
        for event in events
        if (each := event.get("each_ns")) and (apart := event.get("apart_ns"))
    ]
    if not timed:
        return 0, None, None
    each_ns, apart_ns, searches = max(timed, key=lambda search: search[0])
    return searches, each_ns / 1e9, apart_ns / 1e9


def _fold_unenclosed(ranks: Events, shorten: Shortener) -> list[Unenclosed]:
    rows: dict[tuple[int, tuple[Frame, ...]], dict[int, int]] = {}
    for rank, events in ranks.items():
        for event in events:
            if event["event"] == "unenclosed":
                counts = rows.setdefault((int(event["number"]), shorten.frames(event.get("frames"))), {})
                counts[rank] = max(counts.get(rank, 0), int(event["count"]))
    return [Unenclosed(key[0], RankSet(counts), max(counts.values()), key[1]) for key, counts in rows.items()]


def _fold_unfollowed(ranks: Events, shorten: Shortener) -> list[Unfollowed]:
    rows: dict[tuple[int, tuple[Frame, ...], Frame | None], dict[int, int]] = {}
    for rank, events in ranks.items():
        for event in events:
            if event["event"] == "unfollowed":
                lines = event.get("frames")
                key = int(event["number"]), shorten.frames(lines), shorten.find_handler(lines)
                counts = rows.setdefault(key, {})
                counts[rank] = max(counts.get(rank, 0), int(event["count"]))
    return [
        Unfollowed(number, RankSet(counts), max(counts.values()), frames, handler)
        for (number, frames, handler), counts in rows.items()
    ]


def _fold_replicated(ranks: Events, shorten: Shortener) -> list[Replicated]:
    rows: dict[tuple[str, int | None, tuple[Frame, ...]], list[int]] = {}
    for rank, events in ranks.items():
        for event in events:
            if event["event"] == "data-parallel":
                count = event.get("count")
                key = (
                    str(event["class"]),
                    None if count is None else int(count),
                    shorten.frames(event.get("frames")),
                )
                rows.setdefault(key, []).append(rank)
    return [Replicated(RankSet(who), *key) for key, who in rows.items()]


def _fold_gathered(ranks: Events, shorten: Shortener) -> list[Gathered]:
    rows: dict[tuple[str, tuple[Frame, ...]], dict[int, tuple[int, ...]]] = {}
    for rank, events in ranks.items():
        for event in events:
            if event["event"] == "gathered":
                key = str(event["class"]), shorten.frames(event.get("frames"))
                rows.setdefault(key, {})[rank] = tuple(int(size) for size in event["shape"])
    return [
        Gathered(RankSet(shapes), op, next(iter(shapes.values())), frames)
        for (op, frames), shapes in rows.items()
    ]
