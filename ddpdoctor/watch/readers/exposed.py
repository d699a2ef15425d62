"""What ranks wrote down of steps that waited for shards or for stages, folded to `evidence.training.timing`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from ddpdoctor.evidence.training.timing import Pipeline, ShardTimes, StageTimes
from ddpdoctor.facts.training_events import Times
from ddpdoctor.facts.training_rows import WaitRow
from ddpdoctor.watch.readers.records import Shortener

LONGEST, MODULES = 128, 8
"""Rows of one event that are read, and modules that are named."""
MOST = 1 << 62
"""That a number may be."""


def _number(value: object) -> int:
    number = int(value)  # type: ignore[call-overload]  # raises what a damaged row is to raise
    if not 0 <= number < MOST:
        raise ValueError("no time and no count is below zero, or so large")
    return int(number)


def _read(event: Times) -> dict[int, WaitRow]:
    rows = (event.get("waits") or ())[:LONGEST]
    read = [WaitRow(*map(_number, row[: len(WaitRow._fields)])) for row in rows]
    return {row.step: row for row in read if row.took}


def find_shards(events: Iterable[Times]) -> ShardTimes | None:
    """Return how long steps wait for what fully_shard shards, on the rank that waits least in each.

    Raises:
        TypeError, ValueError, IndexError: a row is damaged.
    """
    ranks = [(event, rows) for event in events if (rows := _read(event))]
    common = sorted(set.intersection(*(set(rows) for _, rows in ranks))) if ranks else []
    least = [
        min((rows[step] for _, rows in ranks), key=lambda row: (row.gather + row.reduce) / row.took)
        for step in common
        if all(rows[step].gather + rows[step].reduce for _, rows in ranks)
    ]
    if not least:
        return None
    looked = len(ranks[0][1])
    names: dict[str, int] = {}
    for name, kind, took in (ranks[0][0].get("waited") or ())[:MODULES]:
        if kind in (0, 1):
            names[str(name)[:200]] = names.get(str(name)[:200], 0) + _number(took)
    return ShardTimes(
        steps=len(least),
        step_s=_middle(row.took for row in least),
        gather_s=_middle(row.gather for row in least),
        reduce_s=_middle(row.reduce for row in least),
        gathered_bytes=int(median(row.bytes for row in least)),
        modules=tuple(
            (name, round(took / looked / 1e6, 6))
            for name, took in sorted(names.items(), key=lambda one: -one[1])
        ),
    )


def find_pipeline(events: Mapping[int, Times], shorten: Shortener) -> Pipeline | None:
    """Return how ranks wait for other stages; None where there is no pipeline.

    Args:
        events: Rank -> the last event with its times.
        shorten: Names files and reads source lines.

    Raises:
        TypeError, ValueError, IndexError: a row is damaged.
    """
    found, shapes, looked = [], [], []
    for rank, event in sorted(events.items()):
        rows = list(_read(event).values())
        shape = [_number(each) for each in (event.get("pipeline") or ())[:4]]
        if rows and len(shape) == 4:
            shapes.append(shape)
            looked.append(len(rows))
            found.append(
                StageTimes(
                    rank, shape[3], _middle(row.took for row in rows), _middle(row.stage for row in rows)
                )
            )
    if not found:
        return None
    first = next((event["waited_at"] for event in events.values() if event.get("waited_at")), None)
    return Pipeline(
        stages=max(shape[0] for shape in shapes),
        held=max(shape[1] for shape in shapes),
        micro_batches=max(shape[2] for shape in shapes),
        steps=min(looked),
        ranks=tuple(found),
        frames=shorten.frames(first),
    )


def _middle(microseconds: Iterable[int]) -> float:
    return round(median(microseconds) / 1e6, 6)
