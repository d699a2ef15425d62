"""What the supervisor knows of the ranks of its node while they run: pure bookkeeping over their events."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from ddpdoctor.evidence import RankSet


@dataclass(slots=True)
class Segment:
    """One stay of a rank in a stage, in seconds of `time.monotonic`."""

    begin: float
    end: float | None = None


@dataclass(slots=True)
class RankState:
    """One rank as its events tell it."""

    rank: int
    pid: int | None = None
    stage: str | None = None
    """The stage that it is in now."""
    since: float = 0.0
    segments: dict[str, list[Segment]] = field(default_factory=lambda: defaultdict(list))
    failed: str | None = None
    """The stage in which it raised."""
    finished: bool = False
    gone_at: float | None = None
    """When it was seen that its process is no longer there."""
    rows: list[tuple[str, Any]] = field(default_factory=list)
    note: str | None = None
    user_step: str | None = None
    """What of the user's own model runs now."""

    def apply(self, event: dict[str, Any]) -> None:
        """Take in one event of this rank's file."""
        kind, t = event["event"], float(event["t"])
        if kind == "hello":
            self.pid, self.since = int(event["pid"]), t
        elif kind == "begin":
            self.stage, self.since = str(event["stage"]), t
            self.segments[self.stage].append(Segment(t))
        elif kind in ("end", "failed"):
            stage = str(event["stage"])
            if self.segments[stage]:
                self.segments[stage][-1].end = t
            self.stage, self.since = None, t
            if kind == "failed":
                self.failed = stage
        elif kind == "row":
            self.rows.append((str(event["kind"]), event["data"]))
        elif kind == "note":
            self.note = str(event["text"])
        elif kind == "user":
            self.user_step = event["step"]
        elif kind == "bye":
            self.finished = True

    @property
    def gone(self) -> bool:
        """Its process is no longer there."""
        return self.gone_at is not None

    @property
    def settled(self) -> bool:
        """It will do no more: it finished, failed or is gone."""
        return self.finished or self.failed is not None or self.gone

    def spent(self, stage: str) -> float | None:
        """Seconds spent in ``stage``, or None when it never began."""
        done = [s.end - s.begin for s in self.segments.get(stage, ()) if s.end is not None]
        return sum(done) if done else None

    def completed(self, stage: str) -> bool:
        """Whether it began the stage and left it without an error."""
        parts = self.segments.get(stage, ())
        return bool(parts) and all(s.end is not None for s in parts) and self.failed != stage

    def began(self, stage: str) -> bool:
        """Whether it ever began the stage."""
        return bool(self.segments.get(stage))


def ranks_in(states: dict[int, RankState], stage: str) -> RankSet:
    """Return the ranks that are in ``stage`` now."""
    return RankSet(rank for rank, state in states.items() if state.stage == stage and not state.gone)
