"""Looking at a job that nobody prepared: stacks, /proc, and the rings where it runs under `ddpdoctor run`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from ddpdoctor.evidence.standstill import BUSY_SHARE, Stand, Standstill
from ddpdoctor.gather.network.listeners import open_targets
from ddpdoctor.watch.attach.jobs import FoundJob
from ddpdoctor.watch.attach.sleep import read_sleep
from ddpdoctor.watch.attach.stack_calls import find_call
from ddpdoctor.watch.live.look import Looker
from ddpdoctor.watch.live.stacks import take_stacks
from ddpdoctor.watch.readers.rings import Ring, find_rings

STILL_S = 10.0
"""Seconds for which nothing may move before anything is concluded from stacks; `run` suspects a rank after as long."""
FIRST_S, NEXT_S = 1.0, 3.0
"""Seconds between the two samples of the first look, and of each later one."""
OFTEN, OFTEN_S = 30, 3.0
"""Samples, and seconds for them, where only the lines of a rank tell whether it moves."""
DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render")
"""Who waits for an accelerator may spin meanwhile (cudaStreamSynchronize does): that it runs is no sign of progress."""
NOWHERE = Path("/nonexistent/0-0.ring")


class Sight:
    """Looks at one job again and again.

    Args:
        job: its ranks.
        pause: stop each process for the moment in which its stack is read.
    """

    def __init__(self, job: FoundJob, *, pause: bool = False) -> None:
        self._job, self._pause = job, pause
        self._known: dict[Path, Ring] = {}
        age_s = max(rank.seen.age_s for rank in job.ranks)
        started_ns = time.monotonic_ns() - int(age_s * 1e9)
        node = min((rank.seen.place.node_rank or 0 for rank in job.ranks), default=0)
        self._looker = Looker(find_directory(job), node, started_ns, pause=pause, files=find_files(job))
        self._rings = self._find_rings()
        self.watched = sum(ring.path != NOWHERE for ring in self._rings)
        """Ranks that write their calls down."""
        self._spinning = frozenset(rank.pid for rank in job.ranks if uses_accelerator(rank.pid))

    def observe(
        self, wait: Callable[[float], bool], settles: Callable[[Standstill], bool]
    ) -> Standstill | None:
        """Look until it is clear whether the job moves.

        Args:
            wait: waits so many seconds; True when it was told to stop.
            settles: whether a look is enough to name somebody, however short the job has stood still.

        Returns:
            The last look, with stage ``moving`` where something moved; None where it was told to stop.
        """
        began = time.monotonic()
        first: Standstill | None = None
        while True:
            asleep = self._read_sleep(ring.pid for ring in self._rings)
            seen = self._look(FIRST_S if first is None else NEXT_S, wait, asleep)
            if seen is None:
                return None
            spent = time.monotonic() - began
            if first is not None:
                seen = replace(self._compare(first, seen), interval_s=spent)
            first = first or seen
            if seen.stage != "moving" and self._moves_often(seen):
                seen = replace(seen, stage="moving")
            if seen.stage == "moving" or settles(seen) or _is_enough(seen, spent):
                return seen

    def _look(
        self, interval_s: float, wait: Callable[[float], bool], asleep: dict[int, float]
    ) -> Standstill | None:
        counts = [ring.read_count() for ring in self._rings]
        began = time.monotonic()
        pids = [ring.pid for ring in self._rings if ring.pid]

        def resting(seconds: float) -> list[int]:
            return [pid for pid, asleep_s in self._read_sleep(pids).items() if asleep_s > seconds]

        seen = self._looker.look(self._rings, interval_s=interval_s, wait=wait, resting=resting)
        if seen is None:
            return None
        moved = counts != [ring.read_count() for ring in self._rings]
        spent = time.monotonic() - began
        # What we pause runs for a moment.
        later = {pid: s + spent for pid, s in asleep.items()} if self._pause else self._read_sleep(pids)
        watched = {(ring.pid, ring.rank) for ring in self._rings if ring.path != NOWHERE}
        stands = tuple(
            _complete(stand, (stand.pid, stand.rank) in watched, later.get(stand.pid))
            for stand in seen.stands
        )
        moved = moved or any(self._is_moving(stand) for stand in stands)
        sizes = [size for size in (seen.world_size, self._job.world_size) if size]
        return replace(
            seen, stands=stands, stage="moving" if moved else "look", world_size=max(sizes, default=None)
        )

    def _read_sleep(self, pids: Iterable[int]) -> dict[int, float]:
        """Return seconds since the thread of each process that trains last ran; the main thread before it is known."""
        threads = {self._looker.threads.get(pid, pid): pid for pid in pids}
        return {threads[thread]: seconds for thread, seconds in read_sleep(threads).items()}

    def _is_moving(self, stand: Stand) -> bool:
        """Whether a rank that writes nothing down was seen to move."""
        if stand.watched or not stand.alive:
            return False
        # On a machine with too few cores who computes has little of them, but is always ready to run.
        computes = stand.state == "R" or (stand.cpu_share or 0.0) >= BUSY_SHARE
        return (computes and stand.pid not in self._spinning) or stand.frames != stand.frames_before

    def _compare(self, first: Standstill, now: Standstill) -> Standstill:
        """Return the later of two looks, whose samples before are those of the earlier one."""
        before = {stand.rank: stand for stand in first.stands}
        stands = tuple(
            replace(stand, frames_before=before[stand.rank].frames_before) if stand.rank in before else stand
            for stand in now.stands
        )
        moved = now.stage == "moving" or any(self._is_moving(stand) for stand in stands)
        return replace(now, stands=stands, stage="moving" if moved else now.stage)

    def _moves_often(self, seen: Standstill) -> bool:
        """Whether ranks that may spin on an accelerator come to other lines now and then."""
        running = [
            stand.pid
            for stand in seen.stands
            if stand.pid in self._spinning and not stand.watched and (stand.cpu_share or 0.0) >= BUSY_SHARE
        ]
        end = time.monotonic() + OFTEN_S
        known = take_stacks(running) if running else {}
        for _ in range(OFTEN if running else 0):
            now = take_stacks(running)
            if any(
                known[pid].frames and stack.frames and stack.frames != known[pid].frames
                for pid, stack in now.items()
            ):
                return True
            if time.monotonic() > end:
                break
        return False

    def _find_rings(self) -> list[Ring]:
        """Return a ring for each rank, one that is not there where none is written."""
        host = socket.gethostname()
        written = self._read_written()
        by_process = {(ring.pid, ring.ticks): ring for ring in written}
        rings = []
        for rank in self._job.ranks:
            ring = by_process.get((rank.pid, rank.seen.ticks))
            if ring is None:
                ring = Ring(NOWHERE, rank.pid, rank.seen.ticks, rank=rank.rank, host=host,
                            attempt=rank.seen.attempt, world_size=self._job.world_size)  # fmt: skip
            rings.append(ring)
        known = {ring.rank for ring in rings}
        newest = max(ring.attempt for ring in rings)
        size = self._job.world_size
        for ring in written:
            living = (ring.pid, ring.ticks) in {(r.pid, r.seen.ticks) for r in self._job.ranks}
            fits = ring.rank not in known and ring.attempt == newest and (ring.world_size or size) == size
            if fits and not living:
                rings.append(ring)
                known.add(ring.rank)
        rings += [
            Ring(NOWHERE, 0, 0, rank=rank, host=host, world_size=size)
            for rank in self._job.missing
            if rank not in known
        ]
        return rings

    def _read_written(self) -> list[Ring]:
        if self._job.run is None:
            return []
        rings = find_rings(Path(self._job.run) / "processes", self._known)
        self._looker.read_tables(rings)
        return [ring for ring in rings if ring.rank is not None and ring.read_count()]


def find_directory(job: FoundJob) -> Path:
    """Return the working directory of a job; ours where that may not be read."""
    try:
        return Path(os.readlink(f"/proc/{job.ranks[0].pid}/cwd"))
    except OSError:
        return Path.cwd()


def find_files(job: FoundJob) -> str:
    """Return where the files of a job's own mount namespace lie, as in a container; empty where it is ours."""
    pid = job.ranks[0].pid
    try:
        if os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt"):
            return f"/proc/{pid}/root"
    except OSError:
        pass  # not ours to read: no source is either
    return ""


def uses_accelerator(pid: int) -> bool:
    """Whether a process has an accelerator open."""
    return any(target.startswith(DEVICES) for target in open_targets(pid))


def _complete(stand: Stand, watched: bool, asleep_s: float | None) -> Stand:
    if not stand.alive:
        return replace(stand, watched=watched)
    call = stand.call if watched else find_call(stand.frames)
    still_s = stand.still_s if watched else None
    return replace(stand, watched=watched, asleep_s=asleep_s, call=call, still_s=still_s)


def _is_enough(seen: Standstill, spent: float) -> bool:
    """Whether to look further would show no more: all have stood for long already, or were watched for long enough."""
    living = [stand for stand in seen.stands if stand.alive]
    if not living or spent >= STILL_S:
        return True
    if all(stand.watched for stand in living):
        return seen.still_s >= STILL_S
    return all((stand.asleep_s or 0.0) >= STILL_S for stand in living if not stand.watched)


def wait_for(seconds: float) -> bool:
    """Wait; never told to stop, but by Ctrl-C."""
    time.sleep(seconds)
    return False
