"""Words on the time of steps, and the line that steps are made at."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ddpdoctor.evidence import Evidence, Frame
from ddpdoctor.evidence.training.timing import BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER, RankTimes
from ddpdoctor_checks.common.frames import user_line


def find_step_line(evidence: Evidence) -> Frame | None:
    """Return the user's line that makes the steps of the first optimizer."""
    setup = next((setup for node in evidence.training for setup in node.optimizers), None)
    return user_line(setup.frames) if setup is not None else None


def break_down(ranks: Sequence[RankTimes]) -> str:
    """Say what the phases of a usual step take."""
    words = [
        f"{name} {name_time(median(rank.spend(phase) for rank in ranks))}"
        for name, phase in (
            ("data", DATA), ("forward", FORWARD), ("backward", BACKWARD), ("optimizer", OPTIMIZER), ("Python", OTHER),
        )
    ]  # fmt: skip
    return "a median step: " + ", ".join(words)


def name_time(seconds: float) -> str:
    """Say a length of time in milliseconds, or in seconds from one on."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.0095 else f"{seconds * 1000:.1f} ms"
