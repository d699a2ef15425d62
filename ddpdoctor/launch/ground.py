"""What a check stands on: its handlers of signals, a private directory, who watches over it, and the forkserver.

To import torch takes longer than all else that comes before the ranks, so it can be started before the command has
imported what it needs itself: this module imports little.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType

from ddpdoctor.launch.interrupt import Interrupt
from ddpdoctor.launch.processes import adopt_orphans, kill_descendants
from ddpdoctor.launch.server import TorchServer
from ddpdoctor.launch.torchcheck import has_torch
from ddpdoctor.launch.workplace import Workplace, work_directory

WITHOUT_TORCH = frozenset({"facts", "tcp"})
"""Stages that need none."""


class Ground:
    """Made by whoever runs a check, and cleared once: by `run_check`, or at the end of ``with`` where that never began.

    Args:
        stages: Those that were asked for by name, where torch is to be imported from now on; None waits until a stage
            needs it.
    """

    def __init__(self, stages: Sequence[str] | None = None) -> None:
        adopt_orphans()
        self._kept = ExitStack()
        self.interrupt = self._kept.enter_context(Interrupt())  # until all is cleared
        self.place: Workplace = self._kept.enter_context(work_directory())
        self.server = TorchServer(self.place.path, self.place.name)
        self._kept.callback(self._end_processes)
        try:
            if stages is not None and (not stages or set(stages) - WITHOUT_TORCH) and has_torch():
                self.server.start()
        except BaseException:
            self.clear()
            raise

    def __enter__(self) -> Ground:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def clear(self) -> None:
        """End every process that is left and remove the directory; a second time does nothing."""
        self._kept.close()

    def _end_processes(self) -> None:
        if kill_descendants(keep=(self.server.tracker_pid, self.place.witness_pid)):
            # One is stuck in the kernel: the tracker would wait for it for ever.
            kill_descendants(keep=(self.place.witness_pid,))
        self.server.stop()
