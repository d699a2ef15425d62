"""How far each rank has come and what it does, from its ring of calls and /proc: cheap enough for every second."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ddpdoctor.evidence.standstill import Call
from ddpdoctor.facts.wire import FORWARD, OTHER, POINT_TO_POINT
from ddpdoctor.watch.live.lags import find_lags
from ddpdoctor.watch.live.look import TICKS, Pulse, open_call, read_pulse
from ddpdoctor.watch.live.rank_rings import RankFinder
from ddpdoctor.watch.readers.records import Shortener
from ddpdoctor.watch.readers.rings import Ring, Row

STARTING, IN_CALL, INSIDE, BETWEEN, ENDED, GONE = "starting", "call", "forward", "between", "ended", "gone"
"""Phases: it has called nothing so far; it has not come back from a call; it is in a forward of a wrapper; it is
between two calls; its interpreter has ended; its process is gone without a word."""
WINDOW = 64
"""Newest records that are read at least: what a rank does is in the last few."""
MOST = 4096
"""Records that are read at most: the whole ring."""


@dataclass(frozen=True, slots=True)
class RankProgress:
    """One rank at one moment."""

    rank: int
    phase: str = STARTING
    op: str | None = None
    """The call that it is in, or that it came back from last."""
    place: str | None = None
    """The user's line of that call, as ``train.py:88``."""
    since_s: float = 0.0
    """How long it has been in this phase."""
    peer: int | None = None
    """Root or other side of that call."""
    raised: bool = False
    """Whether it came back with an exception."""
    last: str | None = None
    """The rank's last collective."""
    last_number: int = 0
    last_place: str | None = None
    open: bool = False
    """Whether it is in that collective now."""
    step: int | None = None
    """Forwards of its wrapper, else calls from the place that calls most often."""
    exact: bool = True
    """No call was overwritten before it was counted."""
    forwards: bool = False
    """Whether its steps are forwards."""
    calls: int = 0
    """Collectives that it has begun on the default group."""
    behind: int = 0
    """How many calls, or forwards, it is behind the first rank."""
    late_s: float | None = None
    """Median of the seconds by which it comes later than the others to calls that all make; None where that cannot be
    told."""
    spent: tuple[float, ...] = ()
    """Seconds of its newest steps by phase (`evidence.training.timing.PHASES`), where it has written them down."""
    named: str | None = None
    """The program's own name for what it does (`ddpdoctor.phase`)."""
    memory: int | None = None
    """Resident bytes."""
    cpu: float | None = None
    """Share of one core since the look before."""

    @property
    def alive(self) -> bool:
        """Whether its process is there."""
        return self.phase not in (ENDED, GONE)


@dataclass(frozen=True, slots=True)
class Progress:
    """All ranks of this node at one moment."""

    ranks: tuple[RankProgress, ...]
    world_size: int | None = None
    backend: str | None = None
    attempt: int = 0


@dataclass(slots=True)
class _Known:
    """What was counted of one rank so far."""

    number: int = 0
    """Number of the newest record that was counted."""
    places: Counter[int] = field(default_factory=Counter)
    missed: bool = False
    forwards: dict[int, int] = field(default_factory=dict)
    """Wrapper -> forwards."""
    default: tuple[int, int] = (0, 0)
    """Number of the default group, the newest that was made, and the calls on it."""
    last: Row | None = None
    pulse: Pulse | None = None
    at: float = 0.0


class ProgressReader:
    """Reads how far the ranks of a run have come.

    Args:
        processes: where the processes of the run write.
        root: the job's working directory.
        resident: pid -> resident bytes, kept by somebody else.
    """

    def __init__(self, processes: Path, root: Path, resident: Mapping[int, int]) -> None:
        self._shorten = Shortener(root)
        self._finder = RankFinder(processes, self._read_tables)
        self._resident = resident
        self._known: dict[Path, _Known] = {}

    def read(self) -> Progress:
        """Look at all ranks of the newest attempt."""
        rings = self._finder.find()
        self._read_tables(rings)
        rows = {ring.path: self._read_rows(ring) for ring in rings}
        seen = [self._look(ring, rows[ring.path]) for ring in rings]
        alive = {
            one.rank: (ring, rows[ring.path]) for ring, one in zip(rings, seen, strict=True) if one.alive
        }
        lags = find_lags(alive)
        seen = [replace(one, late_s=lags.get(one.rank)) for one in seen]
        first = max((each.calls for each in seen), default=0)
        step = max((each.step or 0 for each in seen if each.forwards), default=0)
        return Progress(
            tuple(_compare(each, first, step) for each in seen),
            max((ring.world_size or 0 for ring in rings), default=0) or None,
            next((ring.backend for ring in rings if ring.backend), None),
            max((ring.attempt for ring in rings), default=0),
        )

    def _read_tables(self, rings: Iterable[Ring]) -> None:
        for ring in rings:
            ring.read_tables(self._shorten)

    def _read_rows(self, ring: Ring) -> list[Row]:
        new = ring.read_count() - self._known.setdefault(ring.path, _Known()).number
        return ring.read_rows(max(WINDOW, min(new, MOST)))

    def _look(self, ring: Ring, rows: Sequence[Row]) -> RankProgress:
        known = self._known[ring.path]
        now = time.monotonic_ns()
        pulse = read_pulse(ring.pid, ring.ticks)
        count(known, ring, rows)
        step, forwards = find_step(known)
        last = ring.describe(known.last, now) if known.last is not None else None
        phase, row, since_ns = find_phase(ring, rows, pulse.alive)
        call = ring.describe(row, now) if row is not None else None
        cpu = None
        at = now / 1e9
        if known.pulse is not None and pulse.alive and at > known.at:
            cpu = max(0.0, pulse.cpu_s - known.pulse.cpu_s) / (at - known.at)
        known.pulse, known.at = pulse, at
        return RankProgress(
            rank=ring.rank or 0,
            phase=phase,
            op=call.op if call is not None else None,
            place=_name_place(call),
            since_s=max(0.0, (now - since_ns) / 1e9),
            peer=call.peer if call is not None else None,
            raised=call is not None and call.raised,
            last=last.op if last is not None else None,
            last_number=last.ordinal if last is not None else 0,
            last_place=_name_place(last),
            open=phase == IN_CALL
            and row is not None
            and known.last is not None
            and row.number == known.last.number,
            step=step,
            exact=forwards or not known.missed,
            forwards=forwards,
            calls=known.default[1],
            spent=ring.spent,
            named=ring.named,
            memory=self._resident.get(ring.pid) if pulse.alive else None,
            cpu=cpu,
        )


def count(known: _Known, ring: Ring, rows: Sequence[Row]) -> None:
    """Take the records into account that are new since the last time."""
    new = [row for row in rows if row.number > known.number]
    if not new:
        return
    known.missed = known.missed or new[0].number > known.number + 1
    known.number = new[-1].number
    for row in new:
        signature = ring.signatures.get(row.signature, {})
        if row.flags & OTHER:
            if signature.get("op") == FORWARD:
                known.forwards[int(signature.get("index") or 0)] = row.ordinal
            continue
        if row.site:
            known.places[row.site] += 1
        if row.flags & POINT_TO_POINT or not row.group:
            continue
        known.last = row
        if ring.groups.get(row.group, {}).get("default") and row.group >= known.default[0]:
            known.default = row.group, row.ordinal


def find_step(known: _Known) -> tuple[int | None, bool]:
    """Return how many steps a rank has begun, and whether these are forwards of a wrapper.

    Of several wrappers the one that is called most often counts.
    """
    if known.forwards:
        return max(known.forwards.values()), True
    if not known.places:
        return None, False
    return max(known.places.values()), False


def find_phase(ring: Ring, rows: Sequence[Row], alive: bool) -> tuple[str, Row | None, int]:
    """Return what a rank does, the call that tells it, and since when (monotonic ns).

    Args:
        ring: of the rank.
        rows: its newest records.
        alive: whether its process is there.
    """
    if not rows:
        started_ns = int(ring.ticks / TICKS * 1e9)
        return (STARTING if alive else ENDED if ring.ended else GONE), None, started_ns
    current = open_call(ring, rows) if alive else None
    if current is not None:
        op = ring.signatures.get(current.signature, {}).get("op")
        return (INSIDE if op == FORWARD else IN_CALL), current, current.begin_ns
    thread = ring.find_thread(rows)
    newest = next((row for row in reversed(rows) if row.thread == thread), rows[-1])
    since = max(newest.begin_ns, newest.end_ns)
    if not alive:
        return (ENDED if ring.ended else GONE), newest, since
    return BETWEEN, newest, since


def _compare(one: RankProgress, calls: int, step: int) -> RankProgress:
    behind = calls - one.calls
    if one.forwards:
        behind = max(behind, step - (one.step or 0))
    return replace(one, behind=behind) if one.alive and behind > 0 else one


def _name_place(call: Call | None) -> str | None:
    if call is None or not call.frames:
        return None
    frame = call.frames[0]
    return f"{frame.file.rpartition('/')[2]}:{frame.line}"
