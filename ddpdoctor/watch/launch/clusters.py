"""A program that gives its work to a cluster which others have started: its ranks are not watched, and that is said."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ddpdoctor.gather.regular import open_regular
from ddpdoctor.watch.readers.events import read_events
from ddpdoctor.watch.readers.records import read_cluster

LOOK_S = 2.0
MOST_FILES = 64
"""Processes that are looked at: it is the program itself, or one of the first that it starts."""
MOST_BYTES = 1 << 20
"""Most bytes of a process's events that are read: a program connects before it trains."""


class ClusterWatch:
    """Says once that a process of the job has connected to such a cluster.

    Args:
        processes: where the processes of the run write their events.
        say: prints a sentence.
    """

    def __init__(self, processes: Path, say: Callable[[str], None]) -> None:
        self._processes, self._say = processes, say
        self._offsets: dict[Path, int] = {}
        self._next = 0.0
        self._over = False

    def look(self, now: float | None = None) -> None:
        """Look, if it is time for that."""
        now = time.monotonic() if now is None else now
        if self._over or now < self._next:
            return
        self._next = now + LOOK_S
        for path in sorted(self._processes.glob("*.jsonl"))[:MOST_FILES]:
            for event in read_events(self._read(path)):
                if event["event"] == "cluster":
                    self._over = True
                    self._say(
                        f"the job submits its work to the {read_cluster(event)}, which was started outside "
                        "of this command: ranks there are not watched. Run `ddpdoctor attach` on their nodes"
                    )
                    return
        self._over = len(self._offsets) >= MOST_FILES and all(
            offset >= MOST_BYTES for offset in self._offsets.values()
        )

    def _read(self, path: Path) -> bytes:
        """Return the whole lines that were written since the last time."""
        offset = self._offsets.setdefault(path, 0)
        if offset >= MOST_BYTES:
            return b""
        try:
            with open_regular(path) as file:
                file.seek(offset)
                data = file.read(MOST_BYTES)
        except OSError:
            return b""
        data = data[: data.rfind(b"\n") + 1]
        self._offsets[path] = offset + len(data)
        return data
