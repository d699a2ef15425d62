"""What to do about a job that stands still, by what the checks say of it."""

from __future__ import annotations

from dataclasses import dataclass

from ddpdoctor.evidence.standstill import Standstill
from ddpdoctor.facts.hangs import HANG_S


@dataclass(frozen=True, slots=True)
class Policy:
    """What to do about a job that stands still."""

    on_hang: str = "auto"
    """auto: end it on proof, report a confirmed stall; report: end nothing; abort: end it on both."""
    hang_timeout_s: float = HANG_S
    stall_after_s: float | None = None
    """None: the longer of 10 s and ten median steps."""

    def choose_stage(
        self, seen: Standstill, ruling: Ruling, stall_after_s: float, said_s: float | None
    ) -> str | None:
        """Return what a look is to be called (`ddpdoctor.evidence.standstill.STAGES`).

        Args:
            seen: the look.
            ruling: on it.
            stall_after_s: how long a rank may stand still before it is suspected.
            said_s: how long it had stood still when that was last said; None where it was not.

        Returns:
            None where nothing is to be said of it.
        """
        if ruling.proved:
            return "proved"
        if not ruling.stalled or seen.still_s < stall_after_s:
            return None
        if seen.still_s >= self.hang_timeout_s:
            return "confirmed"
        if said_s is None:
            return "suspected"
        return "reminded" if seen.still_s >= 1.9 * said_s else None

    def ends(self, stage: str) -> bool:
        """Whether a look at this stage ends the job."""
        return (
            self.on_hang != "report" if stage == "proved" else (stage, self.on_hang) == ("confirmed", "abort")
        )


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the checks say of a look."""

    proved: bool = False
    """Whether it cannot get on, however long one waits."""
    stalled: bool = False
    """A rank stands outside of every collective and does not move, or all wait in the same one."""
    code: str | None = None
    headline: str = ""
    ranks: tuple[int, ...] = ()
    """Those at fault."""
    unclear: tuple[int, ...] = ()
    """Those of them whose Python lines do not say what they do."""
