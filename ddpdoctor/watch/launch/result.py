"""How the launched command ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddpdoctor.evidence.collectives import CallLog
    from ddpdoctor.evidence.job import Moment
    from ddpdoctor.watch.live.memory import MemoryWatch


@dataclass(slots=True)
class JobResult:
    """How the launched command ended."""

    returncode: int
    """Exit code as subprocess gives it: negative for a signal."""
    duration_s: float
    memory: MemoryWatch
    signals: list[str] = field(default_factory=list)
    """Signals that came while it ran."""
    lost: list[str] = field(default_factory=list)
    timed_out: bool = False
    """Whether it was told to end because its time limit was over."""
    stopped: bool = False
    """Whether it was told to end because it hung."""
    stopped_elsewhere: str | None = None
    """What was found on another node, where that was seen."""
    ended: Moment | None = None
    """When that was seen."""
    calls: CallLog | None = None
    """What its ranks called, where some of it is worth keeping."""

    @property
    def exit_code(self) -> int:
        """What a shell would have seen; 1 where a hang was ended."""
        if self.stopped:
            return 1
        return self.returncode if self.returncode >= 0 else 128 - self.returncode
