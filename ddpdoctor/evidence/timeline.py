"""What happened when, on one axis over all nodes and files of a job."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddpdoctor.evidence.ranks import RankSet

KINDS = ("cause", "consequence", "progress", "call", "exit")
"""A line that speaks for a cause or for a consequence, the last output before trouble, the last collective that
completed, the end of processes."""


@dataclass(frozen=True, slots=True)
class TimedEvent:
    """One event; equal lines of one host are one."""

    wall_ns: int
    """Nanoseconds since the epoch, by the clock of its host."""
    kind: str
    """One of `KINDS`."""
    text: str
    """The line, or words on what happened; bounded and scrubbed."""
    host: str = ""
    ranks: RankSet = field(default_factory=RankSet)
    entry: str | None = None
    """Id in the table of texts."""
    file: str | None = None
    line: int | None = None
    count: int = 1
    """How often the same was said, until the last one."""
