"""What ranks wrote down of their loaders and batches, folded to who was given the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.training.fingerprints import BatchLook, EpochLook, LoaderSetup, Piece
from ddpdoctor.evidence.training.shares import Share
from ddpdoctor.facts.training_events import Batch, Epoch, Loader, LoaderEvent
from ddpdoctor.watch.readers.agreement import fold_field, fold_texts
from ddpdoctor.watch.readers.records import Shortener

KINDS = frozenset({"batch", "epoch", "loader"})
"""Events that tell of it."""
PARTS = 8
"""Tensors of a batch that are compared each for itself, at most."""


@dataclass(slots=True)
class RankLoaders:
    """Events of one rank."""

    rank: int
    loaders: dict[int, list[Loader]] = field(default_factory=dict)
    """Place -> its iterations."""
    epochs: dict[tuple[int, int], Epoch] = field(default_factory=dict)
    """Place and iteration -> what its sampler gave."""
    batches: list[Batch] = field(default_factory=list)

    def take(self, event: LoaderEvent) -> None:
        """Take one event of `KINDS`."""
        if event["event"] == "batch":
            self.batches.append(event)
        elif event["event"] == "epoch":
            self.epochs[int(event["loader"]), int(event["number"])] = event
        else:
            self.loaders.setdefault(int(event.get("place") or 0), []).append(event)

    def locate(self, place: int, shorten: Shortener) -> tuple[str, tuple[Frame, ...]]:
        """Return file and line where a loader was iterated, and the frames; both empty where that is not known."""
        for event in self.loaders.get(place, ()):
            frames = shorten.frames(event.get("frames"))
            if frames:
                return f"{frames[0].file}:{frames[0].line}", frames
        return "", ()


def read_count(value: Any) -> int | None:
    """Return a number that an attribute of a loader or of a sampler can be."""
    return value if type(value) is int and abs(value) < 1 << 63 else None


def fold_batches(ranks: Iterable[RankLoaders], shorten: Shortener) -> list[BatchLook]:
    """Return who was given the same batches."""
    groups: dict[tuple[int, str, int, int], dict[int, Batch]] = defaultdict(dict)
    for rank in ranks:
        for event in rank.batches:
            loader, _ = rank.locate(int(event["loader"]), shorten)
            key = int(event["model"]), loader, int(event["epoch"]), int(event["index"])
            groups[key][rank.rank] = event
    return [
        BatchLook(
            *key,
            batches=fold_field(events, "print"),
            shape=tuple(int(size) for size in (next(iter(events.values()))["shapes"] or [[]])[0]),
            frames=shorten.frames(next(iter(events.values())).get("frames")),
            draws=fold_field(events, "draws"),
            parts=_fold_parts(events),
            pieces=tuple(_list_pieces(events)),
        )
        for key, events in sorted(groups.items())
    ]


def _fold_parts(events: dict[int, Batch]) -> tuple[tuple[Share, ...], ...]:
    """Return which ranks were given the same as each tensor of a batch."""
    told = {rank: parts for rank, event in events.items() if isinstance(parts := event.get("parts"), list)}
    count = min(PARTS, max(map(len, told.values()), default=0))
    return tuple(
        fold_texts(
            {
                rank: str(parts[place])
                for rank, parts in told.items()
                if place < len(parts) and parts[place] is not None
            }
        )
        for place in range(count)
    )


def _list_pieces(events: dict[int, Batch]) -> Iterator[Piece]:
    for rank, event in events.items():
        wholes = event.get("wholes")
        for place, told in enumerate(wholes[:PARTS] if isinstance(wholes, list) else ()):
            if told is not None:
                begin, length, size, digest = str(told)[:200].split()
                yield Piece(rank, place, int(begin), int(length), int(size), digest)


def fold_epochs(ranks: Iterable[RankLoaders], shorten: Shortener) -> list[EpochLook]:
    """Return who was given the same indices."""
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for rank in ranks:
        for (place, number), event in rank.epochs.items():
            loader, _ = rank.locate(place, shorten)
            key = (
                loader, number, str(event["print"]), int(event["compared"]), int(event["batches"]),
                int(event["samples"]), tuple(int(index) for index in event["first"]),
                bool(event["ascending"]), int(event["steps"]),
            )  # fmt: skip
            groups[key].append(rank.rank)
    return [
        EpochLook(
            loader=key[0], number=key[1], ranks=RankSet(who), digest=key[2], compared=key[3], batches=key[4],
            samples=key[5], first=key[6], ascending=key[7], steps=key[8],
        )
        for key, who in sorted(groups.items())
    ]  # fmt: skip


def fold_loaders(ranks: Iterable[RankLoaders], shorten: Shortener) -> list[LoaderSetup]:
    """Return how loaders were made; ranks on which that was the same are one entry."""
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    frames_of: dict[str, tuple[Frame, ...]] = {}
    for rank in ranks:
        for place, events in rank.loaders.items():
            loader, frames = rank.locate(place, shorten)
            if not loader:
                continue
            frames_of.setdefault(loader, frames)
            first = events[0]
            shuffle = first.get("shuffle")
            key = (
                loader, read_count(first.get("length")), read_count(first.get("batch_size")), first.get("sampler"),
                bool(first.get("sets_epoch")), None if shuffle is None else bool(shuffle),
                tuple(int(event["epoch"]) for event in events[:8] if read_count(event.get("epoch")) is not None),
                read_count(first.get("num_replicas")), first.get("shuffles") is not False,
                max(0, read_count(first.get("workers")) or 0),
            )  # fmt: skip
            groups[key].append(rank.rank)
    return [
        LoaderSetup(
            loader=key[0], ranks=RankSet(who), frames=frames_of[key[0]], length=key[1], batch_size=key[2],
            sampler=None if key[3] is None else str(key[3]), sets_epoch=key[4], shuffle=key[5], epochs=key[6],
            replicas=key[7], shuffles=key[8], workers=key[9],
        )
        for key, who in groups.items()
    ]  # fmt: skip
