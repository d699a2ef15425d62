"""The live view of ``run --live``: a table of the ranks, below the job's output, drawn again every second."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from ddpdoctor.text.paper import Paper
from ddpdoctor.watch.run_companions import end_thread
from ddpdoctor.watch.view.rank_progress import STARTING, Progress
from ddpdoctor.watch.view.screen import Screen
from ddpdoctor.watch.view.table import LEAST_ROWS, make_lines, name_clock, name_time

REFRESH_S = 1.0
PATIENCE_S, RETRY_S = 1.0, 0.1
"""How long an unfinished character or escape sequence of the job is waited for, and how often that is looked at."""
RATE_S = 10.0
"""Time over which steps per second are taken."""
STILL_S = 3.0
"""Seconds after which the view says how long no rank has begun or ended a call; usual steps are shorter."""
LEAST_COLUMNS = 50
"""Fewest columns of a terminal in which something is drawn."""
MOST_COLUMNS = 120
"""Longer lines are hard to read."""


class LiveView:
    """Draws the view in a thread of its own.

    Args:
        screen: where.
        read: looks at the ranks.
        said: gives what the monitor says, while it holds.
        color: whether colours are shown.
        ascii: whether only ASCII is shown.
        tell: shows one line to the person; for a failure of the view.
    """

    def __init__(
        self,
        screen: Screen,
        read: Callable[[], Progress],
        said: Callable[[], tuple[str, str] | None],
        *,
        color: bool,
        ascii: bool,
        tell: Callable[[str], object],
    ) -> None:
        self.screen = screen
        self._read, self._said, self._tell = read, said, tell
        self._color, self._ascii = color, ascii
        self._began = time.monotonic()
        self._steps: deque[tuple[float, int]] = deque()
        self._over = False
        self.lost: list[str] = []
        """Nothing: what fails of it is told at once."""
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ddpdoctor-live", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def refresh(self) -> None:
        """Draw now, e.g. because the terminal has another size."""
        self._wake.set()

    def pause(self) -> None:
        """Leave the terminal to others until `resume`."""
        self.screen.pause()

    def resume(self) -> None:
        """Draw again."""
        self.screen.resume()
        self._wake.set()

    def close(self) -> None:
        """End, and leave the terminal as it was."""
        self._over = True
        self._wake.set()
        try:
            end_thread(self._thread, 2.0)
        finally:
            self.screen.close()

    def _run(self) -> None:
        while True:
            self._wake.wait(REFRESH_S)
            self._wake.clear()
            if self._over:
                return
            try:
                self._draw()
            except Exception as problem:  # ours; the job goes on
                self.screen.close()
                self._tell(f"the live view has ended: {type(problem).__name__}: {problem}; the job continues")
                return

    def _draw(self) -> None:
        lines = self._make_lines()
        until = time.monotonic() + PATIENCE_S
        while not self.screen.draw(lines):
            if self._over or time.monotonic() > until:
                self.screen.draw(lines, force=True)
                return
            time.sleep(RETRY_S)

    def _make_lines(self) -> list[str]:
        columns, rows = self.screen.size()
        if rows < LEAST_ROWS or columns < LEAST_COLUMNS:
            return []
        paper = Paper(width=min(columns, MOST_COLUMNS), color=self._color, ascii=self._ascii)
        progress = self._read()
        return make_lines(progress, paper, rows // 2, title=self._title(progress), said=self._said())

    def _title(self, progress: Progress) -> list[str]:
        now = time.monotonic()
        here, world = len(progress.ranks), progress.world_size
        ranks = f"{here} of {world} ranks" if world and world != here else f"{here} rank{'s' * (here != 1)}"
        parts = ["ddpdoctor", ranks if here else "", progress.backend or "", name_clock(now - self._began)]
        if progress.attempt:
            parts.append(f"restart {progress.attempt}")
        still_s = min((each.since_s for each in progress.ranks if each.alive), default=0.0)
        rate = self._rate(progress, now)
        moving = still_s < STILL_S or all(each.phase == STARTING for each in progress.ranks)
        parts.append(rate if moving else f"no collective for {name_time(still_s)}")
        return [part for part in parts if part]

    def _rate(self, progress: Progress, now: float) -> str:
        """Return how fast the first rank gets on."""
        first = max(progress.ranks, key=lambda each: each.step or 0, default=None)
        if first is None or first.step is None:
            self._steps.clear()
            return ""
        if self._steps and self._steps[-1][1] > first.step:
            self._steps.clear()
        self._steps.append((now, first.step))
        while now - self._steps[0][0] > RATE_S:
            self._steps.popleft()
        spent, made = now - self._steps[0][0], first.step - self._steps[0][1]
        if not made or spent < REFRESH_S / 2:
            return ""
        what = "step" if first.forwards else "call"
        return f"{made / spent:.1f} {what}s/s" if made >= spent else f"{spent / made:.1f} s a {what}"
