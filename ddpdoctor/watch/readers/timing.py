"""What ranks wrote down of the time of their steps, folded to `ddpdoctor.evidence.training.timing`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_low, quantiles
from typing import Any

from ddpdoctor.evidence import Frame
from ddpdoctor.evidence.training.timing import (
    PHASES,
    Pipeline,
    RankTimes,
    ShardTimes,
    StageTimes,
    Timing,
    compare,
)
from ddpdoctor.facts.training_events import Times
from ddpdoctor.facts.training_rows import Column, LookRow, WaitRow, choose_sampled
from ddpdoctor.watch.readers.records import Shortener

KINDS = frozenset({"times"})
"""Events that tell of it; the last one of a rank holds all."""
MANY, FEW_COLUMNS = 512, 24
"""Ranks of a job from which on fewer columns are kept."""
LONGEST = 128
"""Columns and looks of one event that are read."""
MODULES = 8
"""Modules that are named of those that steps wait for."""
MOST = 1 << 62
"""That a number may be."""
FEWEST_LOOKS = 10
"""Iterations that say how long ranks take to their first bucket: not the first ones of a job alone."""
CLOCKS_NS = 1_000_000_000
"""Nanoseconds by which the clocks of ranks on one node may seem apart: ranks in time namespaces of their own are not
compared."""
_PHASES = 3 + len(PHASES)

Locate = Callable[[int, int], tuple[Frame, ...]]
"""Gives the frames of a rank's loader."""


@dataclass(slots=True)
class _Column:
    first: int
    count: int
    reduced: int
    spent: tuple[int, ...]
    sampled: int
    met: int
    marks: tuple[int, ...]


@dataclass(slots=True)
class _Rank:
    """Times that one rank wrote, being read."""

    number: int
    event: Times
    width: int
    columns: list[_Column]
    looks: dict[int, LookRow]
    """DistributedDataParallel's own times, by number of the iteration."""
    offset_ns: int
    group: tuple[int, ...] | None

    def widen(self, width: int) -> None:
        """Join columns until each has so many steps."""
        while self.width < width:
            self.width *= 2
            joined: dict[int, _Column] = {}
            for each in self.columns:
                first = (each.first - 1) // self.width * self.width + 1
                known = joined.get(first)
                joined[first] = (
                    each if known is None else _join(known, each, choose_sampled(first, self.width))
                )
                joined[first].first = first
            self.columns = list(joined.values())


def _join(one: _Column, other: _Column, sampled: int) -> _Column:
    chosen = other if other.sampled == sampled else one
    spent = tuple(a + b for a, b in zip(one.spent, other.spent, strict=True))
    return _Column(
        one.first, one.count + other.count, one.reduced + other.reduced, spent, sampled, chosen.met, chosen.marks
    )  # fmt: skip


def _whole(value: Any) -> int:
    """Return a number of a row; what ranks wrote may be damaged, or made up."""
    number = int(value)
    if abs(number) >= MOST:
        raise ValueError("no time and no count is so large")
    return number


def _read_column(row: list[Any]) -> _Column:
    each = Column.from_row([_whole(number) for number in row[: _PHASES + 10]])
    spent = tuple(max(0, took) for took in each.spent)
    return _Column(each.first, max(1, each.steps), each.reduced, spent, each.sampled, each.met, each.marks)


def _read(number: int, event: Times) -> _Rank:
    columns = [_read_column(row) for row in event["columns"][:LONGEST] if len(row) >= _PHASES + 2]
    rows = [LookRow(*map(_whole, row[:6])) for row in event["looks"][:LONGEST] if len(row) >= 6]
    looks = {row.iteration: row for row in rows}
    width = _whole(event["width"])
    if not 0 < width < 1 << 40 or width & (width - 1):
        raise ValueError("a column's width is a power of two")
    members = event.get("members")
    group = tuple(_whole(rank) for rank in members) if members is not None else None
    return _Rank(number, event, width, columns, looks, event["wall_ns"] - event["mono_ns"], group)


def read_newest(event: Times) -> tuple[float, ...]:
    """Return the seconds of a step by phase, of the newest steps that an event tells of.

    Raises:
        TypeError, ValueError, KeyError, IndexError: it is damaged, or tells of no step.
    """
    columns = [_read_column(row) for row in event["columns"][-2:] if len(row) >= _PHASES + 2]
    if not columns:
        raise ValueError("it contains no step")
    count = sum(each.count for each in columns)
    return tuple(sum(took) / count / 1e6 for took in zip(*(each.spent for each in columns), strict=True))


def fold_timing(events: Mapping[int, Times], world: int, locate: Locate, shorten: Shortener) -> Timing:
    """Return where the time of a node's ranks went.

    Args:
        events: Rank -> the last event of `KINDS`.
        world: Ranks of the job.
        locate: Gives the frames of the loader of a rank, by the number of its place.
        shorten: Names files and reads source lines.
    """
    ranks = [_read(rank, event) for rank, event in sorted(events.items())]
    ranks = [rank for rank in ranks if rank.columns]
    if not ranks:
        return Timing()
    width = max(rank.width for rank in ranks)
    longest = FEW_COLUMNS if world > MANY else LONGEST
    while max(rank.columns[-1].first for rank in ranks) > width * longest:
        width *= 2
    for rank in ranks:
        rank.widen(width)
    columns = sorted({each.first for rank in ranks for each in rank.columns})[:longest]
    lags = _find_lags(ranks, columns)
    slower = _find_slower(ranks)
    exposed, reduction, iterations = _find_least(ranks)
    first = max(ranks, key=lambda rank: _whole(rank.event["bytes"]))
    return Timing(
        steps=max(int(rank.event["steps"]) for rank in ranks),
        width=width,
        columns=tuple(columns),
        ranks=tuple(
            RankTimes(
                rank=rank.number,
                seconds=_spend(rank),
                lags=tuple(lags[rank.number]),
                computing_s=_middle(look.computing for look in rank.looks.values()),
                exposed_s=_middle(look.exposed for look in rank.looks.values()),
                after_s=_middle(look.after for look in rank.looks.values()),
                slower_s=slower.get(rank.number),
                rows=_count_rows(rank.event),
                routed_at=shorten.frames(rank.event.get("frames")),
            )
            for rank in ranks
        ),
        arrivals_ns=_find_arrivals(ranks, columns),
        iterations=iterations,
        exposed_s=exposed,
        reduction_s=reduction,
        reductions=round(median(each.reduced / each.count for rank in ranks for each in rank.columns), 3),
        gradient_bytes=_whole(first.event["bytes"]),
        device=str(first.event.get("device") or "")[:20],
        loader=_find_loader(ranks, locate),
        shards=_find_shards(rank.event for rank in ranks),
        pipeline=_find_pipeline({rank.number: rank.event for rank in ranks}, shorten),
    )


def _count_rows(event: Times) -> float | None:
    calls = _whole(event.get("routings") or 0)
    return round(_whole(event.get("routed") or 0) / calls, 1) if calls > 0 else None


def _spend(rank: _Rank) -> tuple[float, ...]:
    return tuple(
        round(median(each.spent[place] / each.count for each in rank.columns) / 1e6, 6)
        for place in range(len(PHASES))
    )


def _middle(took: Iterable[int]) -> float | None:
    """Return the median over the iterations that were measured, in seconds."""
    found = [each for each in took if each >= 0]
    return round(median(found) / 1e6, 6) if found else None


def _find_lags(ranks: Sequence[_Rank], columns: Sequence[int]) -> dict[int, list[float | None]]:
    """Return for each rank and column how late it was, compared with ranks that it meets."""
    lags: dict[int, list[float | None]] = {rank.number: [None] * len(columns) for rank in ranks}
    usual = median_low([rank.offset_ns for rank in ranks])
    together: dict[tuple[int, ...] | None, list[_Rank]] = {}
    for rank in ranks:
        if abs(rank.offset_ns - usual) < CLOCKS_NS:
            together.setdefault(rank.group, []).append(rank)
    for members in together.values():
        found = {rank.number: {each.first: each for each in rank.columns} for rank in members}
        for place, first in enumerate(columns):
            cells = [(number, own[first]) for number, own in found.items() if first in own]
            if len({(cell.sampled, cell.met, len(cell.marks)) for _, cell in cells}) != 1 or len(cells) < 2:
                continue  # they did not meet equally often
            late = [0] * len(cells)
            for mark in zip(*(cell.marks for _, cell in cells), strict=True):
                late = [max(known, one) for known, one in zip(late, compare(mark), strict=True)]
            if cells[0][1].marks:
                for (number, _), microseconds in zip(cells, late, strict=True):
                    lags[number][place] = round(microseconds / 1e6, 4)
    return lags


def _find_arrivals(ranks: Sequence[_Rank], columns: Sequence[int]) -> tuple[int | None, ...]:
    offset = median_low([rank.offset_ns for rank in ranks])
    found: dict[int, list[int]] = {}
    for rank in ranks:
        for each in rank.columns:
            if each.marks:
                found.setdefault(each.first, []).append(each.marks[-1])
    return tuple(median_low(found[first]) * 1000 + offset if first in found else None for first in columns)


def _find_slower(ranks: Sequence[_Rank]) -> dict[int, float]:
    """Return how much longer than the others each rank takes to its first bucket, in most iterations."""
    found: dict[int, list[int]] = {}
    for group in {rank.group for rank in ranks}:
        members = [rank for rank in ranks if rank.group == group]
        if len(members) < 2:
            continue
        for iteration in _common(members):
            took = [rank.looks[iteration].first_bucket for rank in members]
            if min(took) >= 0:
                for rank, more in zip(members, compare(took), strict=True):
                    found.setdefault(rank.number, []).append(more)
    return {
        number: round(quantiles(values, n=4)[0] / 1e6, 6)
        for number, values in found.items()
        if len(values) >= FEWEST_LOOKS
    }


def _find_least(ranks: Sequence[_Rank]) -> tuple[float | None, float | None, int]:
    """Return exposed communication and reduction on the rank that waited least, and in how many iterations."""
    exposed: list[float] = []
    reduction: list[float] = []
    for group in {rank.group for rank in ranks}:
        members = [rank for rank in ranks if rank.group == group]
        for iteration in _common(members):
            least = min((rank.looks[iteration] for rank in members), key=lambda look: look.exposed)
            exposed.append(least.exposed / 1e6)
            reduction.append(least.reduction / 1e6)
    if not exposed:
        return None, None, 0
    return round(median(exposed), 6), round(median(reduction), 6), len(exposed)


def _common(ranks: Iterable[_Rank]) -> list[int]:
    sets = [set(rank.looks) for rank in ranks]
    return sorted(set.intersection(*sets))


def _find_loader(ranks: Sequence[_Rank], locate: Locate) -> tuple[Frame, ...]:
    waited = [
        (_whole(row[1]), rank.number, _whole(row[0]))
        for rank in ranks
        for row in (rank.event.get("loaders") or ())[:16]
        if len(row) == 2
    ]
    _, number, place = max(waited, default=(0, 0, 0))
    return locate(number, place) if place else ()


def _count(value: Any) -> int:
    """Return a number that is not below zero."""
    number = _whole(value)
    if number < 0:
        raise ValueError("no time and no count is below zero")
    return number


def _read_waits(event: Times) -> dict[int, WaitRow]:
    rows = (event.get("waits") or ())[:LONGEST]
    read = [WaitRow(*map(_count, row[: len(WaitRow._fields)])) for row in rows]
    return {row.step: row for row in read if row.took}


def _find_shards(events: Iterable[Times]) -> ShardTimes | None:
    """Return how long steps wait for what fully_shard shards, on the rank that waits least in each.

    Raises:
        TypeError, ValueError, IndexError: a row is damaged.
    """
    ranks = [(event, rows) for event in events if (rows := _read_waits(event))]
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
            names[str(name)[:200]] = names.get(str(name)[:200], 0) + _count(took)
    return ShardTimes(
        steps=len(least),
        step_s=_middle_of(row.took for row in least),
        gather_s=_middle_of(row.gather for row in least),
        reduce_s=_middle_of(row.reduce for row in least),
        gathered_bytes=int(median(row.bytes for row in least)),
        modules=tuple(
            (name, round(took / looked / 1e6, 6))
            for name, took in sorted(names.items(), key=lambda one: -one[1])
        ),
    )


def _find_pipeline(events: Mapping[int, Times], shorten: Shortener) -> Pipeline | None:
    """Return how ranks wait for other stages; None where there is no pipeline.

    Args:
        events: Rank -> the last event with its times.
        shorten: Names files and reads source lines.

    Raises:
        TypeError, ValueError, IndexError: a row is damaged.
    """
    found, shapes, looked = [], [], []
    for rank, event in sorted(events.items()):
        rows = list(_read_waits(event).values())
        shape = [_count(each) for each in (event.get("pipeline") or ())[:4]]
        if rows and len(shape) == 4:
            shapes.append(shape)
            looked.append(len(rows))
            found.append(
                StageTimes(
                    rank,
                    shape[3],
                    _middle_of(row.took for row in rows),
                    _middle_of(row.stage for row in rows),
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


def _middle_of(microseconds: Iterable[int]) -> float:
    return round(median(microseconds) / 1e6, 6)
