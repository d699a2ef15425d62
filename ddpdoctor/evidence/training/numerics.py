"""Numbers that one rank alone can spoil: losses that are not finite, scales of gradients, buffers.

Made by the watcher of a job from what each rank wrote down; see ``backwards.py``, ``scalers.py`` and
``evaluations.py`` of ``ddpdoctor_watch`` for when it does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ddpdoctor.evidence.ranks import RankSet
from ddpdoctor.evidence.stages import Frame
from ddpdoctor.evidence.training.shares import Share


@dataclass(frozen=True, slots=True)
class LossLook:
    """The beginning of a run of losses, or of one gradient, that are not finite, on one rank."""

    rank: int
    backward: int
    """How-manyth backward of the rank, from 1."""
    value: str
    """nan, inf or -inf."""
    step: int = 0
    """How-manyth step of the optimizers was to follow, from 1."""
    lasts: bool = True
    """No such number after it was finite."""
    loader: str = ""
    """File and line where the loader was iterated that began last; empty where there was none."""
    epoch: int = 0
    """How-manyth iteration from there, from 1; 0 where there was none."""
    index: int = 0
    """How-manyth batch of it, from 1, or how-manyth backward since it began where batches are fetched ahead."""
    samples: tuple[int, ...] = ()
    """First indices of that batch; empty where batches are fetched ahead, or have no indices."""
    frames: tuple[Frame, ...] = ()
    """Frames of the backward, innermost first; empty where the loss was on a device."""
    what: str = "loss"
    """loss (at the beginning of the backward) or gradient (of the rank itself, before it is reduced)."""
    wrapper: int = 0
    """Number of the wrapper that a gradient belongs to, as in `WrapperSetup.number`."""
    parameter: str = ""
    """Name of the parameter that a gradient belongs to."""


@dataclass(frozen=True, slots=True)
class LossCount:
    """Backwards of ranks, and of how many the loss was read."""

    ranks: RankSet
    backwards: int
    checked: int
    gradients: int = 0
    """Backwards of which a gradient was read, for the gradient that was read most often."""


@dataclass(frozen=True, slots=True)
class ScaleLook:
    """The scale of a GradScaler on one rank, at a step with it at which it had changed, or that is a power of two."""

    scaler: int
    """Number of the scaler, in order of the scalers' first steps."""
    rank: int
    step: int
    """Step with the scaler, from 1. At the last look, at the end, one more than were made."""
    scale: float
    final: bool = False
    frames: tuple[Frame, ...] = ()
    """Frames of the first step, innermost first."""


@dataclass(frozen=True, slots=True)
class BufferLook:
    """Buffers of a wrapped model at the first forward of an evaluation."""

    wrapper: int
    """Number of the wrapper, as in `WrapperSetup.number`."""
    evaluation: int
    """How-manyth of that model, from 1."""
    step: int
    """Steps of optimizers that were made before."""
    door: str
    """What was called: module (without the wrapper) or wrapper (which does not broadcast)."""
    ranks: RankSet
    broadcasts: bool = True
    """The wrapper broadcasts buffers before its own forwards."""
    buffers: dict[str, tuple[Share, ...]] = field(default_factory=dict)
    """Name -> who has the same, the most first; first those that differ; some of them only."""
    differing: int = 0
    """How many differ on this node."""
    frames: tuple[Frame, ...] = ()
    """Frames of the call, innermost first."""


@dataclass(frozen=True, slots=True)
class CompanionLook:
    """A model that ran in a step, and that no optimizer and no wrapper has: a teacher, a moving average."""

    number: int
    """Number of the model, in the order in which a rank first called such models."""
    model: str
    """Name of the class of the model."""
    optimizer: int
    step: int
    """Before which it was looked at, from 1."""
    parameters: int
    values: tuple[Share, ...] = ()
    """Who holds the same values of all its parameters."""
    frames: tuple[Frame, ...] = ()
    """Frames of its first call, innermost first."""


@dataclass(frozen=True, slots=True)
class Numerics:
    """What was seen on one node."""

    losses: tuple[LossLook, ...] = ()
    counts: tuple[LossCount, ...] = ()
    """Counts of the ranks that came to their end."""
    scales: tuple[ScaleLook, ...] = ()
    evaluations: tuple[BufferLook, ...] = ()
    companions: tuple[CompanionLook, ...] = ()
