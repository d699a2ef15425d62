"""Where one rank stands, and what has to agree in the call that it stands in."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ddpdoctor.evidence import Frame
from ddpdoctor.evidence.standstill import Call, Stand
from ddpdoctor.facts.collectives import OWN, PARTS, ROOT, names_with, operation_of
from ddpdoctor_checks.common.frames import user_line

UNEVEN = frozenset(map(operation_of, names_with(PARTS, ROOT, OWN)))
"""What is done with parts that may be of different sizes on other devices than the processor."""


def essence(call: Call) -> tuple[object, ...]:
    """Return what has to agree in one call over ranks."""
    op = operation_of(call.op)
    size = math.prod(call.shape) if call.shape is not None else None
    if op in UNEVEN and call.device not in (None, "cpu"):
        size = None
    return op, size, call.dtype, call.reduction, call.peer


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank stands."""

    stand: Stand
    kind: str
    """gone, collective, point (send or receive), wrapper (initialisation, wrap, forward, backward), work (waits for
    something asked for earlier), functional (in a functional collective, of which no numbers are written
    down), device (waits for what it has queued on a device) or outside."""
    call: Call | None = None
    moved: bool = False
    """Outside: its stack changed between the samples, or it computes."""
    pending: tuple[Call, ...] = ()
    """Work and device: what it has asked for that may not be over."""

    @property
    def rank(self) -> int:
        """Its number."""
        return self.stand.rank

    @property
    def waits(self) -> bool:
        """Whether it waits for other ranks."""
        return self.kind not in ("gone", "outside")

    @property
    def line(self) -> Frame | None:
        """The user's own line."""
        if self.kind in ("work", "device"):
            return user_line(self.stand.frames)
        frames = self.call.frames if self.call is not None and self.call.frames else self.stand.frames
        if self.kind == "gone":
            frames = self.stand.exit_frames
        elif self.kind == "outside":
            frames = self.stand.frames or frames
        return user_line(frames)

    @property
    def key(self) -> tuple[object, ...]:
        """What ranks that wait in the same call have in common."""
        call = self.call
        if self.kind in ("collective", "wrapper") and call is not None:
            return (call.series, call.ordinal, call.members, *essence(call))
        if self.kind == "functional" and call is not None:
            return (self.kind, call.op, call.members)
        if self.kind in ("work", "device"):
            return (self.kind, *((each.series, each.ordinal) for each in self.pending))
        return (self.kind, self.rank)
