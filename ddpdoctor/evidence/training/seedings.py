"""Lines at which ranks seeded torch's random number generators.

Made by the watcher of a job from what each rank wrote down; see ``seeds.py`` of ``ddpdoctor_watch`` for when it does.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddpdoctor.evidence.stages import Frame
from ddpdoctor.evidence.training.shares import Share


@dataclass(frozen=True, slots=True)
class Seeding:
    """A line that seeded torch, when it was first called."""

    values: tuple[Share, ...]
    """Ranks by the seed that they gave."""
    trained: bool = False
    """Whether a rank had begun a backward pass before."""
    frames: tuple[Frame, ...] = ()
    """Frames of the call, innermost first."""
