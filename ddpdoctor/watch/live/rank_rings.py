"""Finding the rings of a job's ranks among those of all of its processes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ddpdoctor.watch.live.look import TICKS, read_pulse
from ddpdoctor.watch.readers.rings import Ring, find_rings

AGAIN_S = 2.0
"""Seconds between two looks into the journal of a process that is no rank so far."""


def choose_job(rings: Sequence[Ring]) -> list[Ring]:
    """Return one ring for each rank, in the order of the ranks, all of one job.

    A command may run several jobs, one after the other or at once. Of those that ran before the newest counts. Of those
    that run at once the one with the most ranks does, where they meet at places of their own; else none: calls of two
    jobs must not be taken for those of one.
    """
    chosen = _choose_each(_drop_earlier(rings))
    if chosen is None:
        jobs: dict[tuple[object, ...], list[Ring]] = {}
        for ring in rings:
            jobs.setdefault(ring.meeting, []).append(ring)
        chosen = _choose_each(max(jobs.values(), key=lambda job: (len(job), job[0].pid))) or {}
    return [chosen[rank] for rank in sorted(chosen)]


def _drop_earlier(rings: Sequence[Ring]) -> Sequence[Ring]:
    """Leave out ranks of jobs that had ended before the first of those that live began."""
    alive = {ring.path for ring in rings if read_pulse(ring.pid, ring.ticks).alive}
    if not alive or len(alive) == len(rings):
        return rings
    up_s = time.clock_gettime(time.CLOCK_BOOTTIME)  # which the start of a process is counted in
    began_s = time.time() - up_s + min(ring.ticks for ring in rings if ring.path in alive) / TICKS
    return [ring for ring in rings if ring.path in alive or ring.read_written_s() >= began_s]


def _choose_each(rings: Sequence[Ring]) -> dict[int, Ring] | None:
    """Return the ring of each rank; None where several processes of one rank live."""
    by_rank: dict[int, list[Ring]] = {}
    for ring in rings:
        by_rank.setdefault(ring.rank or 0, []).append(ring)
    chosen = {}
    for rank, same in by_rank.items():
        alive = [ring for ring in same if read_pulse(ring.pid, ring.ticks).alive] if len(same) > 1 else same
        if len(alive) > 1:
            return None
        chosen[rank] = alive[0] if alive else max(same, key=lambda each: each.ticks)
    return chosen


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
        chosen = choose_job([ring for ring in ranked if ring.attempt == newest])
        # Who cannot tell which calls a rank has made, must not say what it has left out.
        return [] if any(ring.blind for ring in chosen) else chosen

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
