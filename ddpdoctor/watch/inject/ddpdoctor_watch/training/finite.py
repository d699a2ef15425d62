"""Whether numbers that a rank makes in each backward are finite: runs of those that are not, from the first one on.

On the CPU a number is read at once; on a GPU it is copied to the host beside the work that is queued, and read some
backwards later: nothing is waited for.
"""

from __future__ import annotations

import math

from ..core import frames, journal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from ddpdoctor.facts import training_events

RUNS = 20
"""Most runs of non-finite numbers of one kind whose beginning is written down, besides the one that the program ends
in."""
SLOTS = 64
"""Numbers of a GPU that are under way to the host at a time."""
_MARK = -1.1754943508222875e-38
"""Value of a slot that nothing has reached yet: minus the smallest normal number of 32 bits, which no loss is."""
_FRAMES = 8


class Finite:
    """Numbers of one kind.

    Args:
        fields: Of its events: which numbers they are.
    """

    def __init__(self, fields: training_events.Numbers) -> None:
        self.fields = fields
        self.checked = 0
        self.bad = 0
        self.since = 0
        self.runs = 0
        self._slots: Any = None
        self.under_way: list[tuple[int, int, training_events.Place]] = []
        self._unwritten: training_events.NonFinite | None = None

    def judge(self, number: int, value: float, told: training_events.Place, frame: FrameType | None) -> None:
        """Take the number of a backward.

        Args:
            number: Of the backward, from 1.
            value: It.
            told: Where the program is.
            frame: From which on the program's line is looked for.
        """
        self.checked += 1
        if math.isfinite(value):
            if self.since:
                self.since = 0
                if self._unwritten is None:
                    healed: Any = {**self.fields, "number": number}
                    journal.write("finite", healed)
                self._unwritten = None
            return
        self.bad += 1
        if self.since:
            return
        self.since = number
        self.runs += 1
        event: Any = {
            **self.fields,
            "number": number,
            "value": str(value),
            **told,
            "frames": frames.list_own(frame, _FRAMES),
        }
        if self.runs > RUNS:
            self._unwritten = event
        else:
            journal.write("nonfinite", event)

    def send(self, number: int, value: Any, told: training_events.Place, torch: Any) -> None:
        """Let a number on a GPU be copied to the host, after what is queued before it."""
        if len(self.under_way) >= SLOTS:
            return
        if self._slots is None:
            self._slots = torch.full((SLOTS,), _MARK, dtype=torch.float32, pin_memory=True)
        used = {slot for slot, _, _ in self.under_way}
        slot = next(each for each in range(SLOTS) if each not in used)
        self._slots[slot] = _MARK
        self._slots[slot].copy_(value.detach().reshape(()), non_blocking=True)
        self.under_way.append((slot, number, told))

    def read(self) -> None:
        """Judge the numbers that have arrived, in their order."""
        while self.under_way:
            slot, number, told = self.under_way[0]
            value = self._slots[slot].item()
            if value == _MARK:
                return
            del self.under_way[0]
            self.judge(number, value, told, None)

    def note_end(self, count: int) -> None:
        """Write down of how many backwards the number was read, and since when it is not finite."""
        self.read()
        if self._unwritten is not None:
            journal.write("nonfinite", self._unwritten)
        losses: Any = {
            **self.fields,
            "count": count,
            "checked": self.checked,
            "bad": self.bad,
            "since": self.since,
        }
        journal.write("losses", losses)
