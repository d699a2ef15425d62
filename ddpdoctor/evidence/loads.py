"""Checkpoints that ranks loaded into a model, and of which nothing went into it.

Made by the watcher of a job from what each rank wrote down; see ``loads.py`` of ``ddpdoctor_watch`` for when it does.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddpdoctor.evidence.ranks import RankSet
from ddpdoctor.evidence.stages import Frame


@dataclass(frozen=True, slots=True)
class EmptyLoad:
    """A call of load_state_dict with ``strict=False`` that matched no name, for a prefix."""

    ranks: RankSet
    model: str
    """Class of the module that it was called on."""
    prefix: str
    """module. or the like."""
    extra: bool
    """The names of the checkpoint have it, and those of the module have not; else the reverse."""
    name: str
    """The first of the checkpoint."""
    count: int
    """Names in the checkpoint."""
    frames: tuple[Frame, ...] = ()
    """Of the call, innermost first."""
