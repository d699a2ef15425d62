"""Summing up this node for the head of several, when its agent asks (docs/adr/0006)."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddpdoctor.watch.launch.result import JobResult
from ddpdoctor.watch.listening import Listener
from ddpdoctor.watch.nodes.parcels import pack
from ddpdoctor.watch.nodes.sums import read_members

if TYPE_CHECKING:
    from ddpdoctor.watch.commandline import Split
    from ddpdoctor.watch.live.memory import MemoryWatch
    from ddpdoctor.watch.rundir import RunDirectory

ADDRESS = "node"
"""Name of the socket at which the agent asks for the sum, in the run's private directory."""
LOG_BYTES = 8 << 20
"""Most bytes of each log that are read for a sum, half of them at each end: the others wait for it."""


class Desk:
    """Sums up what was seen on this node, when the agent asks for it; nothing is done before that."""

    def __init__(self, directory: RunDirectory, split: Split) -> None:
        self._directory, self._split = directory, split
        self._started = time.monotonic()
        self._memory: MemoryWatch | None = None
        self._signals: list[str] = []
        self._listener = Listener(directory.private / ADDRESS, self._answer, "ddpdoctor-nodes", self._note)
        self.lost: list[str] = []

    def expect(self, memory: MemoryWatch, signals: list[str]) -> None:
        """Take what a sum is made of.

        Args:
            memory: of the run.
            signals: names of those that came; goes on growing.
        """
        self._memory, self._signals = memory, signals

    def start(self) -> None:
        """Begin to listen, in a thread.

        Raises:
            OSError: there can be no socket.
            RuntimeError: there can be no thread.
        """
        self._listener.open()

    def close(self) -> None:
        """Stop to listen."""
        self._listener.close()

    def _answer(self, question: bytes) -> bytes:
        try:
            return self._sum_up(int(json.loads(question)["node"]))
        except Exception as problem:  # ours, or a question of nobody's; the next one is answered
            self._note(problem)
            return b""

    def _note(self, problem: Exception) -> None:
        self.lost.append(f"the summary for other nodes: {type(problem).__name__}: {problem}")

    def _sum_up(self, node: int) -> bytes:
        # Only when asked: the job does not wait for these to be imported.
        from ddpdoctor.evidence.bundle import JOB_KINDS, renumber_node
        from ddpdoctor.evidence.nodes import BY_NODE
        from ddpdoctor.watch.launch.evidence import make_evidence

        assert self._memory is not None, "listens only when open"
        so_far = JobResult(0, time.monotonic() - self._started, self._memory, list(self._signals), [])
        evidence = make_evidence(so_far, self._directory, self._split, log_bytes=LOG_BYTES)
        own = [each for each in read_members(self._directory.kept, evidence) if each.own]
        own = [dataclasses.replace(each, interrupted=_first(self._signals)) for each in own]
        # How the launcher ends is not known yet, and it is the head's to judge a standstill.
        rest: dict[str, Any] = {kind: () for kind in JOB_KINDS if kind not in BY_NODE}
        rest["members"] = tuple(own)
        return pack(renumber_node(dataclasses.replace(evidence, **rest), node))


def _first(signals: Sequence[str]) -> str | None:
    return signals[0] if signals else None
