"""What a probe inside a rank may use: who it is, what to do, where to put what it sees."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ddpdoctor.launch.plan import Plan

GROUP_MARGIN_S = 2.0
"""A group's own time-out ends this much before the stage's limit, so that torch can still say what it saw."""


@dataclass(frozen=True, slots=True)
class RankContext:
    """One rank of the tiny world. Probes emit evidence and draw no conclusion."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node: int
    host: str
    device: str
    """Device of this rank as torch writes it: ``cpu`` or ``cuda:1``."""
    backend: str
    """Backend of the default process group."""
    plan: Plan
    emit: Callable[[str, Any], None]
    """``emit(kind, row)``: append one evidence dataclass to this rank's file; ``kind`` is an evidence
    kind."""
    note: Callable[[str], None]
    """``note(text)``: what is being done now, shown as progress (only rank 0's is)."""
    enter: Callable[[str | None], None] = lambda step: None
    """``enter(step)``: which step of the user's model runs from now on, None when none does. A rank that dies there
    died of it."""

    def limit(self, stage: str) -> float:
        """Seconds after which ``stage`` is cut."""
        return self.plan.limits[stage]

    def group_timeout(self, stage: str) -> timedelta:
        """Time-out for collectives of ``stage``: a little before its limit."""
        return timedelta(seconds=max(1.0, self.limit(stage) - GROUP_MARGIN_S))

    def end_of(self, stage: str) -> float:
        """`time.monotonic` value at which ``stage``, starting now, must have ended by itself."""
        return time.monotonic() + max(1.0, self.limit(stage) - GROUP_MARGIN_S)
