"""What ranks wrote down of their loaders, folded to who was told the same (`ddpdoctor.evidence.training.sampling`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.training.sampling import Sampling
from ddpdoctor.facts.training_events import Epoch, Loader
from ddpdoctor.watch.readers.loaders import RankLoaders, read_count
from ddpdoctor.watch.readers.records import Shortener

ITERATIONS = 3
"""Most iterations of one loader that are kept."""
LOADERS = 40
"""Iterations that are kept in all."""
SKETCH = 128
"""Hashes of one sketch that are kept."""

_Key = tuple[Any, ...]


@dataclass(slots=True)
class _Group:
    event: Loader
    ranks: list[int] = field(default_factory=list)
    shards: dict[str, int] = field(default_factory=dict)
    trained: bool = False
    joining: bool = False
    samples: int = 0
    padded: int | None = None


def fold_samplings(ranks: Iterable[RankLoaders], shorten: Shortener) -> tuple[Sampling, ...]:
    """Return the first iterations of each loader; ranks that were told the same are one entry."""
    groups: dict[_Key, _Group] = {}
    for rank in ranks:
        trained = {
            (int(event["loader"]), int(event["epoch"])): bool(event.get("joining")) for event in rank.batches
        }
        for place, events in rank.loaders.items():
            name, _ = rank.locate(place, shorten)
            if not name:
                continue
            for event in events[:ITERATIONS]:
                number = int(event["number"])
                group = groups.setdefault((name, number, *_read_key(event)), _Group(event))
                _add(group, rank, event, rank.epochs.get((place, number)), trained.get((place, number)))
    chosen = sorted(groups.items(), key=lambda item: (item[0][1], item[0][0], item[1].ranks[0]))[:LOADERS]
    return tuple(_make(key, group, shorten) for key, group in chosen)


def _read_key(event: Loader) -> _Key:
    numbers = tuple(
        read_count(event.get(name))
        for name in (
            "length",
            "seed",
            "epoch",
            "num_replicas",
            "total_size",
            "whole",
            "split_size",
            "split_reach",
        )
    )
    split = tuple(sorted(max(0, int(each)) for each in event.get("split") or ()))[:SKETCH]
    return (
        *numbers,
        event.get("shuffle"),
        event.get("sampler"),
        event.get("dataset"),
        event.get("origin"),
        split,
    )


def _add(
    group: _Group,
    rank: RankLoaders,
    event: Loader,
    epoch: Epoch | None,
    trained: bool | None,
) -> None:
    group.ranks.append(rank.rank)
    shard = read_count(event.get("shard"))
    if shard is not None:
        group.shards[str(rank.rank)] = shard
    group.trained = group.trained or trained is not None
    group.joining = group.joining or bool(trained)
    if epoch is not None:
        group.samples += max(0, int(epoch["samples"]))
        padded = read_count(epoch.get("padded"))
        if padded is not None:
            group.padded = (group.padded or 0) + max(0, padded)


def _make(key: _Key, group: _Group, shorten: Shortener) -> Sampling:
    (
        name,
        number,
        length,
        seed,
        epoch,
        replicas,
        total,
        whole,
        size,
        reach,
        shuffle,
        sampler,
        dataset,
        origin,
        split,
    ) = key
    return Sampling(
        loader=name,
        number=number,
        ranks=RankSet(group.ranks),
        frames=shorten.frames(group.event.get("frames")),
        length=length,
        sampler=None if sampler is None else str(sampler),
        shuffle=None if shuffle is None else bool(shuffle),
        seed=seed,
        epoch=epoch,
        replicas=replicas,
        total=total,
        shards=group.shards,
        trained=group.trained,
        joining=group.joining,
        samples=group.samples,
        padded=group.padded,
        dataset=None if dataset is None else str(dataset),
        origin=None if origin is None else str(origin),
        whole=whole,
        split_size=size,
        split=split,
        split_reach=reach,
    )
