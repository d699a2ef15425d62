"""Checkpoints that ranks loaded: into models, into optimizers, or into neither.

Made by the watcher of a job from what each rank wrote down; see ``loads.py`` and ``resumes.py`` of ``ddpdoctor_watch``
for when it does.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddpdoctor.evidence.ranks import RankSet
from ddpdoctor.evidence.stages import Frame
from ddpdoctor.evidence.training.shares import Share


@dataclass(frozen=True, slots=True)
class EmptyLoad:
    """A call of load_state_dict with ``strict=False`` that matched no name, for a prefix."""

    ranks: RankSet
    model: str
    """Class of the module that it was called on."""
    prefix: str
    """What all names begin with that differ, e.g. ``module.``."""
    extra: bool
    """The names of the checkpoint have it, and those of the module have not; else the reverse."""
    name: str
    """The first of the checkpoint."""
    count: int
    """Names in the checkpoint."""
    frames: tuple[Frame, ...] = ()
    """Frames of the call, innermost first."""


@dataclass(frozen=True, slots=True)
class LateLoad:
    """A line at which a state dict went into an optimizer, or into a model that was wrapped before."""

    ranks: RankSet
    """Those that did."""
    wrapper: int
    """Number of the wrapper; 0: an optimizer."""
    target: str
    """Class of the module or optimizer that it was called on."""
    count: int
    """How often, at most."""
    forwards: int = 0
    """Forwards in training of the wrapper before the first time, or before that of `apart`; the fewest of a rank."""
    apart: tuple[Share, ...] = ()
    """Ranks by the values that a model had after the first time at which they differ; empty where they never do."""
    frames: tuple[Frame, ...] = ()
    """Frames of the call, innermost first."""


@dataclass(frozen=True, slots=True)
class FreshOptimizer:
    """An optimizer that began without the state that the distributed checkpoint of its model holds."""

    ranks: RankSet
    optimizer: str
    """Name of the optimizer's class."""
    names: str
    """Under which the checkpoint holds the state of optimizers that nothing asked for."""
    counter: str = ""
    """Something else than tensors that was loaded with the model: a step, an epoch, a schedule. Empty for none."""
    frames: tuple[Frame, ...] = ()
    """Frames of the load, innermost first."""
    step_frames: tuple[Frame, ...] = ()
    """Frames of the first step, innermost first."""
