"""Finding the rings of a job's ranks among those of all of its processes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from ddpdoctor.watch.look import read_pulse
from ddpdoctor.watch.rings import Ring, find_rings

AGAIN_S = 2.0
"""Between two looks into the journal of a process that is no rank so far."""


class RankFinder:
    """Finds the ranks of the newest attempt, again and again while the job runs.

    Args:
        processes: where the processes of the run write.
        read_tables: reads what is new in the journals of rings.
    """

    def __init__(self, processes: Path, read_tables: Callable[[Iterable[Ring]], None]) -> None:
        self._processes, self._read_tables = processes, read_tables
        self._rings: dict[Path, Ring] = {}
        self._again: dict[int, float] = {}

    def find(self) -> list[Ring]:
        """Return the rings of the ranks, in the order of the ranks."""
        rings = find_rings(self._processes, self._rings)
        self._read_tables(ring for ring in rings if self._may_become_rank(ring))
        ranked = [ring for ring in rings if ring.rank is not None]
        newest = max((ring.attempt for ring in ranked), default=0)
        by_rank: dict[int, Ring] = {}
        for ring in sorted(ranked, key=lambda each: each.ticks):
            if ring.attempt == newest:
                by_rank[ring.rank or 0] = ring
        return [by_rank[rank] for rank in sorted(by_rank)]

    def _may_become_rank(self, ring: Ring) -> bool:
        """Whether its journal may say soon that it is a rank, or how large the world is.

        Helpers are looked at again now and then only, and not when they have ended: there may be thousands.
        """
        if ring.rank is not None:
            return not ring.world_size
        now = time.monotonic()
        if now < self._again.get(ring.pid, 0.0):
            return False
        alive = read_pulse(ring.pid, ring.ticks).alive
        self._again[ring.pid] = now + AGAIN_S if alive else math.inf
        return True
