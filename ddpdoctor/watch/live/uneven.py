"""Loaders that give ranks different numbers of batches, told while the job still runs.

The lengths are known from the first batch on; the ranks with more batches wait for the others at the end of the epoch,
which may be hours later. What the ranks of this node wrote of their loaders is read beside them, and nobody is asked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddpdoctor.evidence.training.fingerprints import Training
from ddpdoctor.facts.events import AnyEvent
from ddpdoctor.gather.regular import open_regular
from ddpdoctor.watch.live.rank_rings import RankFinder
from ddpdoctor.watch.readers.events import read_events
from ddpdoctor.watch.readers.records import Shortener
from ddpdoctor.watch.readers.rings import Ring
from ddpdoctor.watch.readers.training import TrainingReader
from ddpdoctor.watch.run_companions import end_thread

TICK_S = 2.0
KINDS = (b'"event":"loader"', b'"event":"batch"', b'"event":"tensors"')
"""What has to be known: the lengths, that a model in training is given the batches, and who reduces with whom."""
MOST_EVENTS = 120
"""Most events of one rank that are read: the first iterations of each loader tell."""
PIECE = 4 << 20
"""Bytes of a journal that are read at once."""
MOST_SHARE, FREE_S = 0.005, 0.5
"""Largest share of the job's time that comparing loaders may take, and seconds that are free."""


@dataclass(slots=True)
class _Rank:
    """What was read of one rank's journal."""

    ring: Ring
    offset: int = 0
    events: list[AnyEvent] = field(default_factory=list)

    def read(self) -> bool:
        """Read what is new; return whether that tells anything."""
        if len(self.events) >= MOST_EVENTS:
            return False
        before = len(self.events)
        try:
            with open_regular(self.ring.path.with_suffix(".jsonl")) as file:
                file.seek(self.offset)
                data = file.read(PIECE)
        except OSError:
            return False
        end = data.rfind(b"\n") + 1
        self.offset += end if end else len(data) * (len(data) == PIECE)
        self.events += self._pick(data[:end])
        return len(self.events) > before

    def _pick(self, data: bytes) -> Iterator[AnyEvent]:
        for line in data.split(b"\n"):
            if any(kind in line for kind in KINDS):
                yield from read_events(line)


class LoaderWatch:
    """Looks at the loaders of the ranks in a thread of its own, until one was told of.

    Args:
        processes: where the processes of the run write.
        root: the job's working directory.
        tell: is given what was seen so far, and says whether a person was told of it; called in the thread.
    """

    def __init__(self, processes: Path, root: Path, tell: Callable[[Training], bool]) -> None:
        self._tell = tell
        self._shorten = Shortener(root)
        self._finder = RankFinder(processes, self._read_tables)
        self._ranks: dict[Path, _Rank] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ddpdoctor-loaders", daemon=True)
        self._began = time.monotonic()
        self._spent = 0.0
        self.lost: list[str] = []

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._stop.set()
        end_thread(self._thread, 2.0)

    def look(self) -> bool:
        """Read what is new, and judge it; return whether there is anything left to be told."""
        rings = self._finder.find()
        ranks = [self._ranks.setdefault(ring.path, _Rank(ring)) for ring in rings]
        new = [rank.read() for rank in ranks]  # each of them
        if not any(new) or len(ranks) < 2:
            return True
        reader = TrainingReader(self._shorten)
        for rank in ranks:
            journal = rank.ring.path.with_suffix(".jsonl")
            reader.add(rank.ring.rank or 0, journal, rank.events, rank.ring.world_size or 0)
        training = reader.fold(0)
        return training is None or not self._tell(training)

    def _read_tables(self, rings: Any) -> None:
        for ring in rings:
            ring.read_tables(self._shorten)

    def _watch(self) -> None:
        while not self._stop.wait(TICK_S):
            began = time.thread_time()
            if self._spent > FREE_S + MOST_SHARE * (time.monotonic() - self._began):
                continue
            try:
                if not self.look():
                    return
            except Exception as problem:  # ours; the job goes on
                self.lost.append(
                    f"comparing the DataLoaders of ranks ended: {type(problem).__name__}: {problem}"
                )
                return
            self._spent += time.thread_time() - began
