"""Looking at all ranks of a job that does not get on: their calls, their stacks, what their processes do."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from ddpdoctor.evidence import Frame
from ddpdoctor.evidence.job import Moment
from ddpdoctor.evidence.standstill import Call, ChildStand, FileLock, Stand, Standstill
from ddpdoctor.facts.wire import RAISED
from ddpdoctor.gather.process_state import STARTED, STATE, SYSTEM_TIME, USER_TIME, read_stat
from ddpdoctor.gather.scrub import scrub, scrub_argv
from ddpdoctor.source import find_conditions
from ddpdoctor.watch.live import network
from ddpdoctor.watch.live.locks import read_locks
from ddpdoctor.watch.live.stacks import Stack, take_stacks
from ddpdoctor.watch.readers.records import SOURCE_LIMIT, Shortener
from ddpdoctor.watch.readers.rings import Ring, Row

CALLERS = 3
"""Frames of a call that is one of the last ones; the one that a rank stands in keeps them all."""
LOADERS = 8
"""Places at which loaders are iterated that are kept of each rank."""
RECENT = 60
"""Calls of each rank that are kept as evidence of a look."""
MADE = 40
"""Earlier calls that created groups which are kept beside them: they tell what each group's name means."""
MOST_BESIDE = 4
"""Calls of other threads that are kept."""
COUNTED = 4096
"""Records that are looked through for how far each group has come: the whole ring."""
GUARDED = 6
"""Most of the user's own frames whose conditions are searched for."""
MOST_CHILDREN = 8
"""Children of a rank that are looked at."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Pulse:
    """What /proc says of a process at one moment."""

    alive: bool
    state: str | None = None
    cpu_s: float = 0.0


def read_pulse(pid: int, ticks: int) -> Pulse:
    """Return whether a process lives, its state and the processor time that it has used.

    Args:
        pid: its id.
        ticks: when it started, in clock ticks since boot: another process with its number is not it.
    """
    fields = read_stat(pid)
    if not fields:
        return Pulse(False)
    state = fields[STATE]
    if int(fields[STARTED]) != ticks or state in ("Z", "X"):
        return Pulse(False, state)
    return Pulse(True, state, (int(fields[USER_TIME]) + int(fields[SYSTEM_TIME])) / TICKS)


def open_call(ring: Ring, rows: Sequence[Row]) -> Row | None:
    """Return the call that the thread that trains has not come back from.

    What its thread began last is where it is: a call that was followed by another one has ended though nobody saw it
    (it raised), or stands around it (a forward). Where the thread that trains made none of them, that of the newest
    counts.
    """
    if not rows:
        return None
    thread = ring.find_thread(rows)
    newest = next((row for row in reversed(rows) if row.thread == thread), rows[-1])
    return newest if newest.open else None


def list_beside(ring: Ring, rows: Sequence[Row]) -> list[Row]:
    """Return the calls that other threads than that of `open_call` have not come back from."""
    last = {row.thread: row for row in rows}
    trains = ring.find_thread(rows)
    main = trains if trains in last else rows[-1].thread if rows else 0
    return [row for thread, row in last.items() if row.open and thread != main][-MOST_BESIDE:]


class Looker:
    """Makes evidence of how the ranks stand.

    Args:
        root: the job's working directory.
        node: number of this node.
        started_ns: monotonic, when the job began.
        pause: stop each process for the moment in which its stack is read.
        files: what to put before the names of files to find them, e.g. ``/proc/17/root`` for those of a container.
    """

    def __init__(
        self, root: Path, node: int, started_ns: int, *, pause: bool = False, files: str = ""
    ) -> None:
        self._shorten = Shortener(root, files)
        self._root = files + str(root)
        self._files = files
        self._node = node
        self._started_ns = started_ns
        self._pause = pause
        self.threads: dict[int, int] = {}
        """Process -> kernel's id of the thread whose stack was read."""
        self._families: dict[int, list[psutil.Process]] | None = None
        """Parent -> children, within one look."""
        self._locks: dict[int, tuple[FileLock, ...]] = {}
        """The same: process -> its locks on files."""

    def read_tables(self, rings: Iterable[Ring]) -> None:
        """Read what is new in the journals of these rings."""
        for ring in rings:
            ring.read_tables(self._shorten)

    def look(
        self,
        rings: Sequence[Ring],
        *,
        interval_s: float,
        wait: Callable[[float], bool],
        ends: Mapping[int, tuple[int | None, int | None]] | None = None,
        resting: Callable[[float], Collection[int]] | None = None,
    ) -> Standstill | None:
        """Take two samples of everything.

        Args:
            rings: of the ranks of one attempt.
            interval_s: between the samples.
            wait: waits so many seconds; True when it was told to stop.
            ends: pid -> exit code and signal, where they are known.
            resting: gives the processes whose main thread is known not to have run for so many seconds: their stacks
                need not be taken again.

        Returns:
            None where it was told to stop, or where a rank has stopped writing its calls down.
        """
        first = time.monotonic()
        ranks = {ring.pid: ring.rank for ring in rings}
        traffic = network.take_sample(list(ranks))
        before = self._sample(rings)
        began = time.monotonic()
        if wait(interval_s):
            return None
        unchanged = resting(time.monotonic() - first) if resting is not None else ()
        after = self._sample(rings, {pid: before[pid][1] for pid in unchanged if pid in before})
        if any(ring.blind for ring in rings):
            return None
        spent = time.monotonic() - began
        paths = network.describe(ranks, traffic, network.take_sample(list(ranks)), self._node)
        self._families = None
        self.read_tables(rings)
        self._locks = read_locks(ring.pid for ring in rings)
        now = time.monotonic_ns()
        stands = [
            self._stand(ring, before[ring.pid], after[ring.pid], spent, now, (ends or {}).get(ring.pid))
            for ring in rings
        ]
        still = [stand.still_s for stand in stands if stand.still_s is not None]
        sizes = [size for ring in rings if (size := ring.world_size or ring.asked_size)]
        return Standstill(
            at=Moment(time.time_ns(), now),
            after_s=(now - self._started_ns) / 1e9,
            still_s=min(still, default=0.0),
            stands=tuple(sorted(stands, key=lambda stand: stand.rank)),
            world_size=max(sizes, default=None),
            interval_s=spent,
            network=(paths,),
        )

    def _sample(
        self, rings: Sequence[Ring], known: Mapping[int, Stack | None] | None = None
    ) -> dict[int, tuple[Pulse, Stack | None]]:
        pulses = {ring.pid: read_pulse(ring.pid, ring.ticks) for ring in rings}
        kept = {pid: stack for pid, stack in (known or {}).items() if stack is not None and stack.frames}
        wanted = [pid for pid, pulse in pulses.items() if pulse.alive and pid not in kept]
        stacks = {**kept, **take_stacks(wanted, pause=self._pause)}
        self.threads.update({pid: stack.thread or pid for pid, stack in stacks.items() if stack.frames})
        return {pid: (pulse, stacks.get(pid)) for pid, pulse in pulses.items()}

    def _stand(
        self,
        ring: Ring,
        before: tuple[Pulse, Stack | None],
        after: tuple[Pulse, Stack | None],
        spent: float,
        now: int,
        end: tuple[int | None, int | None] | None,
    ) -> Stand:
        rows = ring.read_rows(COUNTED)
        current = open_call(ring, rows)
        early = [row for row in rows[:-RECENT] if ring.names_group(row)][-MADE:]
        calls = [self._guard(_shorten_stack(ring.describe(row, now))) for row in (*early, *rows[-RECENT:])]
        started_ns = int(ring.ticks / TICKS * 1e9)
        newest = max((max(row.begin_ns, row.end_ns) for row in rows), default=started_ns)
        pulse, stack = after
        alive = pulse.alive
        call = ring.describe(current, now) if current is not None and alive else None
        frames = self._name(stack)
        return Stand(
            rank=ring.rank if ring.rank is not None else -1,
            pid=ring.pid,
            node=self._node,
            host=ring.host,
            alive=alive,
            exit_code=(end[0] if end else ring.status) if not alive else None,
            signal=end[1] if end and not alive else None,
            exit_frames=ring.exit_frames if not alive else (),
            call=call,
            recent=tuple(calls),
            counts=_count(ring, rows),
            complete=not rows or rows[0].number == 1,
            threads=_count_threads(ring, rows),
            beside=tuple(ring.describe(row, now) for row in list_beside(ring, rows)) if alive else (),
            given_size=ring.given_size,
            port=ring.port,
            raised=sum(bool(row.flags & RAISED) for row in rows),
            backend=ring.backend,
            ended=ring.ended,
            still_s=max(0.0, (now - newest) / 1e9) if alive else None,
            frames=frames,
            conditions=self._find_conditions(call.frames if call is not None else frames),
            locks=self._locks.get(ring.pid, ()) if alive and current is None else (),
            loaders=tuple(ring.loaders.values())[-LOADERS:],
            others=self._name_frames(stack.others) if stack is not None and alive else (),
            frames_before=self._name(before[1]),
            cpu_share=max(0.0, pulse.cpu_s - before[0].cpu_s) / spent if alive and spent > 0 else None,
            state=pulse.state if alive else None,
            wait_channel=_read_wait_channel(self.threads.get(ring.pid, ring.pid)) if alive else None,
            children=self._look_at_children(ring.pid) if alive and current is None else (),
            note=stack.problem if stack is not None else None,
        )

    def _name(self, stack: Stack | None) -> tuple[Frame, ...]:
        return self._name_frames(stack.frames) if stack is not None else ()

    def _name_frames(self, frames: Sequence[Frame]) -> tuple[Frame, ...]:
        return self._shorten.frames([[f.file, f.line, f.function] for f in frames])

    def _find_conditions(self, frames: Sequence[Frame]) -> tuple[Frame, ...]:
        """Return what decides whether the user's lines run, from the innermost frame on."""
        own = [frame for frame in frames if frame.source is not None][:GUARDED]
        return tuple(
            Frame(frame.file, found.line, found.kind, scrub(found.text)[:SOURCE_LIMIT], frame.owner)
            for frame in own
            for found in find_conditions(self._find_file(frame.file), frame.line)
        )

    def _guard(self, call: Call) -> Call:
        """Give a call that creates a group, or that a device has to make, what decides whether it is reached."""
        if call.made is None and call.device in (None, "cpu", "meta"):
            return call
        return dataclasses.replace(call, conditions=self._find_conditions(call.frames))

    def _find_file(self, name: str) -> str:
        return self._files + name if os.path.isabs(name) else os.path.join(self._root, name)

    def _look_at_children(self, pid: int) -> tuple[ChildStand, ...]:
        """Return what the processes do that a rank has started and may be waiting for."""
        if self._families is None:  # one pass over /proc for all ranks
            self._families = {}
            for process in psutil.process_iter(["ppid"]):
                self._families.setdefault(process.info["ppid"], []).append(process)
        children = self._families.get(pid, [])[:MOST_CHILDREN]
        if not children:
            return ()
        stacks = take_stacks([child.pid for child in children])
        found = []
        for child in children:
            try:
                command, state = child.cmdline(), child.status()
            except psutil.Error:
                continue
            frames = self._name(stacks.get(child.pid))
            worker = any(frame.file.endswith("_utils/worker.py") for frame in frames)
            role = "loader-worker" if worker else "other"
            found.append(
                ChildStand(child.pid, role, frames, state, " ".join(scrub_argv(command))[:200] or None)
            )
        return tuple(found)


def _count_threads(ring: Ring, rows: Sequence[Row]) -> int:
    """Return how many threads make calls, without a main thread that only makes groups for another one."""
    threads = {row.thread for row in rows}
    if ring.find_thread(rows) != ring.main_thread:
        threads.discard(ring.main_thread)
    return len(threads) or 1


def _shorten_stack(call: Call) -> Call:
    """Leave a call the frames that tell it from others; a rank has dozens."""
    return dataclasses.replace(call, frames=call.frames[:CALLERS])


def _count(ring: Ring, rows: Sequence[Row]) -> dict[str, int]:
    """Return how far each series of calls has come."""
    series: dict[tuple[int, ...], str] = {}
    counts: dict[str, int] = {}
    for row in rows:
        key = (row.signature, row.group, row.peer, row.tag, row.flags)
        name = series.get(key)
        if name is None:
            name = series[key] = ring.describe(row, row.begin_ns).series
        counts[name] = row.ordinal  # after a new init_process_group a group of the same name begins anew
    return counts


def _read_wait_channel(pid: int) -> str | None:
    try:
        text = Path(f"/proc/{pid}/wchan").read_text().strip()
    except OSError:
        return None
    return text if text not in ("", "0") else None
