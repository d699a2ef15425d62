"""How much later than the others each rank of a node comes to the calls that all of them make, by their rings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from ddpdoctor.evidence.training.timing import compare
from ddpdoctor.facts.wire import FORWARD, OTHER, POINT_TO_POINT
from ddpdoctor.watch.readers.rings import Ring, Row

NEWEST = 16
"""Calls of one kind whose median is taken."""
FEWEST = 4

_Times = dict[tuple[str, object], dict[int, int]]
"""Kind of call -> its number -> when the rank came to what it waits in."""


def find_lags(ranks: Mapping[int, tuple[Ring, Sequence[Row]]]) -> dict[int, float]:
    """Return seconds, in the median of the newest calls of the kind where that is most; 0 for who is never late.

    Args:
        ranks: Of living ranks the ring and its newest records.
    """
    times = {rank: _read_times(ring, rows) for rank, (ring, rows) in ranks.items()}
    if len(times) < 2:
        return {}
    late: dict[int, list[float]] = {rank: [] for rank in times}
    for kind in set.intersection(*(set(each) for each in times.values())):
        together = set.intersection(*(set(each[kind]) for each in times.values()))
        numbers = sorted(together)[-NEWEST:]
        if len(numbers) < FEWEST:
            continue
        lags = [compare([times[rank][kind][number] for rank in times]) for number in numbers]
        for rank, own in zip(times, zip(*lags, strict=True), strict=True):
            late[rank].append(median(own))
    return {rank: max(0.0, *each) / 1e9 for rank, each in late.items() if each}


def _read_times(ring: Ring, rows: Sequence[Row]) -> _Times:
    """Return when a rank ended its forwards, and began its collectives among all ranks."""
    found: _Times = defaultdict(dict)
    for row in rows:
        signature = ring.signatures.get(row.signature, {})
        if row.flags & OTHER:
            if signature.get("op") == FORWARD and row.end_ns:
                found[FORWARD, int(signature.get("index") or 0)][row.ordinal] = row.end_ns
        elif not row.flags & POINT_TO_POINT and ring.groups.get(row.group, {}).get("default"):
            frames = ring.sites.get(row.site)  # whose numbers are each rank's own
            place = (frames[0].file, frames[0].line) if frames else None
            found[str(signature.get("op")), place][row.ordinal] = row.begin_ns
    return found
