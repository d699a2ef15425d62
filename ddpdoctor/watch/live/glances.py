"""Glances at the ranks: what each ring and process shows in a few reads, twice a second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpdoctor.facts.hangs import STALL_S
from ddpdoctor.facts.wire import FORWARD, RAISED
from ddpdoctor.watch.live.look import TICKS, Looker, Pulse, open_call, read_pulse
from ddpdoctor.watch.live.pace import Glance, median_step
from ddpdoctor.watch.readers.rings import Ring, Row

TICK_S = 0.5
"""Seconds between two glances at the rings: a few reads of 64 bytes for each rank."""
IDLE_SHARE = 0.1
"""Share of one core below which a process is idle; one that uses more is computing."""
STALL_STEPS = 10
"""A rank is suspected after the longer of `STALL_S` and so many median steps (--stall-after auto)."""
LONGEST_STALL_S = 600.0
GLANCED = 8
"""Newest records that a glance reads."""
STEPS = 512
"""Records from which the length of a step is taken."""


@dataclass(slots=True)
class _Known:
    """What was seen of one ring before."""

    pulse: Pulse
    at: float
    idle: bool = False


class GlanceReader:
    """Reads the rings of ranks, and remembers how much each process computed since the last time.

    Args:
        looker: reads the tables of a ring whose numbers are not known yet.
    """

    def __init__(self, looker: Looker) -> None:
        self._looker = looker
        self._known: dict[int, _Known] = {}

    def read(self, ring: Ring, now: int) -> Glance:
        """Return what one rank shows now.

        Args:
            ring: of the rank.
            now: monotonic, in nanoseconds.
        """
        rows = ring.read_rows(GLANCED)
        pulse = read_pulse(ring.pid, ring.ticks)
        known = self._known.get(ring.pid)
        at = now / 1e9
        if known is None or at - known.at >= TICK_S / 2:
            idle = (
                known is not None
                and pulse.alive
                and (pulse.cpu_s - known.pulse.cpu_s) < IDLE_SHARE * (at - known.at) + 1e-9
            )
            self._known[ring.pid] = known = _Known(pulse, at, idle)
        current = open_call(ring, rows)
        if current is not None and not ring.knows(current):
            self._looker.read_tables([ring])
        if current is not None and ring.describe(current, now).op == FORWARD:
            current = None  # the user's modules run in it; where it waits for others, the rank is idle
        return Glance(
            rank=ring.rank or 0,
            alive=pulse.alive,
            idle=known.idle,
            gave_up=(bool(rows) and bool(rows[-1].flags & RAISED))
            or (not pulse.alive and ring.status is not None and ring.status != 0),
            count=rows[-1].number if rows else 0,
            changed_ns=max(
                (max(row.begin_ns, row.end_ns) for row in rows), default=int(ring.ticks / TICKS * 1e9)
            ),
            call=_identify(ring, current),
            since_ns=current.begin_ns if current is not None else 0,
        )


def choose_stall(rings: Sequence[Ring]) -> float:
    """Return the seconds without progress after which a stall is suspected, by the length of a step."""
    return min(max(STALL_S, STALL_STEPS * median_step(rings[0].read_rows(STEPS))), LONGEST_STALL_S)


def _identify(ring: Ring, row: Row | None) -> tuple[object, ...] | None:
    if row is None:
        return None
    call = ring.describe(row, row.begin_ns)
    return (call.group, call.ordinal, call.op, call.shape, call.dtype, call.reduction, call.peer)
