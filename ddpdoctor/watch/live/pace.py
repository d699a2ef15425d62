"""When ranks are to be looked at: pure rules over what the rings and /proc show at one moment."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddpdoctor.facts.hangs import HANG_S
from ddpdoctor.watch.readers.rings import Row

BLOCKED_S = 1.0
"""A call that takes longer counts as waiting."""
EASING = 0.98
"""Factor by which the time before a look shrinks again with each change that was seen."""
QUIET_S = 1.5
"""Where some wait and the others use no processor: for so long nothing may happen before stacks are taken."""


@dataclass(frozen=True, slots=True)
class Glance:
    """What the rings and /proc show of one rank at one moment."""

    rank: int
    alive: bool
    idle: bool
    count: int
    changed_ns: int
    """Monotonic, of the newest beginning or end of a call."""
    call: tuple[object, ...] | None = None
    """What the call is that it has not come back from: equal for ranks that stand in the same one."""
    since_ns: int = 0
    """When that call began."""
    gave_up: bool = False
    """Whether its newest call has raised, or it has ended with an error."""

    def waits(self, now_ns: int) -> bool:
        """Whether it has been in a call for longer than calls take."""
        return self.alive and self.call is not None and now_ns - self.since_ns >= BLOCKED_S * 1e9


@dataclass(slots=True)
class Pace:
    """When the next look is due. Pure: it is given what was seen and the time.

    Three things make one due: every rank that lives waits, and not all in the same call; some wait while the
    others use no processor; nothing happens for `stall_after`. While nothing changes, looks become rarer; where
    one was for nothing because the job went on, the next waits twice as long: a job of long steps is not looked at in
    each. What was put off so comes back slowly, for a slow beginning says little of the steps.
    """

    quiet_s: float = QUIET_S
    blocked_s: float = BLOCKED_S
    _key: tuple[tuple[int, int, int, bool], ...] = ()
    _next_s: float = 0.0
    _looked_s: float | None = None
    _all_waited: bool = False
    _began_ns: int | None = None
    """Since when ranks that have called nothing yet use no processor."""
    still_s: float = 0.0
    """Seconds for which nothing had happened when the last look was due; before any call: no rank had used a
    processor."""
    moved: bool = False
    """The last call of `due` saw that something had happened since the one before."""

    def due(
        self,
        glances: Sequence[Glance],
        now_ns: int,
        stall_after_s: float,
        hang_timeout_s: float = HANG_S,
        world_size: int | None = None,
    ) -> bool:
        """Whether to look now.

        Args:
            glances: of all ranks of the attempt, also of those that are gone.
            now_ns: monotonic.
            stall_after_s: see `Policy`; not passed by without a look.
            hang_timeout_s: the same.
            world_size: of the job; larger than the number of ranks where others are on other nodes.
        """
        partial = (world_size or 0) > len(glances)
        rungs_s = (stall_after_s, hang_timeout_s)
        key = tuple((glance.rank, glance.count, glance.changed_ns, glance.alive) for glance in glances)
        live = [glance for glance in glances if glance.alive]
        self.moved = key != self._key
        if self.moved:
            if self._looked_s is not None:
                self.quiet_s = min(2 * self.quiet_s, stall_after_s)
                if self._all_waited:
                    self.blocked_s = min(2 * self.blocked_s, stall_after_s)
            else:
                self.quiet_s = max(QUIET_S, EASING * self.quiet_s)
                self.blocked_s = max(BLOCKED_S, EASING * self.blocked_s)
            self._key, self._next_s, self._looked_s = key, 0.0, None
        if not live or (len(glances) < 2 and not partial):
            return False
        if not any(glance.count for glance in live):
            self._began_ns = self._note_idle(live, now_ns)
            if self._began_ns is None:
                self._next_s = 0.0
                return False  # nothing was called yet, and ranks compute: they import and build
            glances = live = [replace(glance, changed_ns=self._began_ns) for glance in live]
        else:
            self._began_ns = None
        still_s = (now_ns - max(glance.changed_ns for glance in live)) / 1e9
        if still_s < max(self._next_s, self._threshold(glances, live, now_ns, stall_after_s, partial)):
            return False
        self._looked_s = self.still_s = still_s
        self._all_waited = all(glance.waits(now_ns) for glance in live)
        self._next_s = max(2 * still_s, still_s + 1.0)
        for rung_s in rungs_s:
            if still_s < rung_s:
                self._next_s = min(self._next_s, rung_s)
        return True

    def _note_idle(self, live: Sequence[Glance], now_ns: int) -> int | None:
        """Return since when no rank has used a processor that has called nothing yet; None where one does."""
        if not all(glance.idle for glance in live):
            return None
        return self._began_ns if self._began_ns is not None else now_ns

    def _threshold(
        self,
        glances: Sequence[Glance],
        live: Sequence[Glance],
        now_ns: int,
        stall_after_s: float,
        partial: bool,
    ) -> float:
        waiting = [glance for glance in live if glance.waits(now_ns)]
        others = [glance for glance in live if not glance.waits(now_ns)]
        if not others:
            same = len(waiting) == len(glances) and len({glance.call for glance in waiting}) == 1
            if same:
                return self.quiet_s if partial else stall_after_s
            return self.blocked_s
        if not any(glance.count for glance in live):
            return stall_after_s
        return self.quiet_s if all(glance.idle for glance in others) else stall_after_s


def median_step(rows: Sequence[Row]) -> float:
    """Return the median time between two calls from the place that calls most often, in seconds; 0 where unknown."""
    places = Counter((row.site, row.signature) for row in rows)
    if not places:
        return 0.0
    place, times = places.most_common(1)[0]
    if times < 3:
        return 0.0
    begins = [row.begin_ns for row in rows if (row.site, row.signature) == place]
    gaps = sorted(after - before for before, after in itertools.pairwise(begins))
    return gaps[len(gaps) // 2] / 1e9
