"""Which task of a job gives the verdict, and how long it waits for the others.

* A task that ends well while others live leaves: a later one will judge.
* The first one that fails, or the last one that ends, takes ``judge``. It waits for those that have not ended, a few
  seconds at most, and judges what all have seen by then.
* Others that fail meanwhile stay until the verdict was given: where a task fails, mpirun (and srun with
  ``--kill-on-bad-exit``) kills all others a second later, the one that judges among them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from ddpdoctor.watch.keeping import write_below
from ddpdoctor.watch.tasks.folder import Folder, Seen

WAIT_S = 3.0
"""How long the one that judges waits for others, unless --nodes-wait says otherwise."""
QUIET_BEATS, QUIET_S = 1.4, 10.0
"""A task on another host that has not given a sign of life for so long is waited for further, until it gives one or
counts as gone: a host that was lost is told from one that is slow."""
JUDGING_S = 15.0
"""How long others that failed wait for the verdict beyond that; it takes about a second."""
STEP_S, STEP_EACH_S = 0.05, 0.002
"""Seconds between two looks at the folder, and seconds that each task adds: all that failed look, at a file system
shared by many."""


class Bench:
    """Where the tasks of one job come when their part has ended.

    Args:
        folder: of the job.
        wait_s: how long the one that judges waits for the others.
    """

    def __init__(self, folder: Folder, wait_s: float | None = None) -> None:
        self._folder = folder
        self._wait_s = WAIT_S if wait_s is None else wait_s

    def come(self, *, failed: bool) -> Sequence[Seen] | None:
        """Return how all tasks stand where this one is to judge; None where another one does, or will.

        Args:
            failed: its part of the job did.
        """
        folder = self._folder
        began = time.monotonic()
        folder.refresh()
        if not failed and folder.has_living_others():
            return None
        step = STEP_S + STEP_EACH_S * folder.task.count
        judging = False
        while not folder.has("done"):
            waited = time.monotonic() - began
            judging = judging or folder.take("judge")
            if judging:
                seen = folder.look()
                open_ = [
                    each
                    for each in seen
                    if each.state in ("alive", "absent") and each.about.number != folder.task.number
                ]
                if not open_ or (waited >= self._wait_s and not self._may_be_lost(open_, waited)):
                    return seen
            elif waited >= self._wait_s + QUIET_S + JUDGING_S:
                return None
            else:
                self._replace_lost()
            time.sleep(step)
            folder.refresh()
        return None

    def _may_be_lost(self, tasks: Sequence[Seen], waited: float) -> bool:
        quiet = QUIET_BEATS * self._folder.beat_s
        late = any(
            self._folder.measure_silence(each.about.number) > quiet for each in tasks if each.state == "alive"
        )
        return late and waited < self._wait_s + QUIET_S

    def _replace_lost(self) -> None:
        """Let another one judge where the one that took it upon itself was killed."""
        judge = self._folder.taken_by("judge")
        if judge is not None and not self._folder.is_alive(judge):
            self._folder.release("judge")

    def leave(self) -> None:
        """Say that the verdict was given."""
        with contextlib.suppress(OSError):
            write_below(self._folder.kept, "done", b"")
