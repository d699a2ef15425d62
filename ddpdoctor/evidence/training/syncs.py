"""How ranks use DistributedDataParallel: what each step reduces, what no_sync encloses, what is searched for.

Made by the watcher of a job from what each rank wrote down; see ``ddpdoctor_watch/training/syncs.py`` for when it does.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddpdoctor.evidence.ranks import RankSet
from ddpdoctor.evidence.stages import Frame


@dataclass(frozen=True, slots=True)
class PaceLook:
    """What the steps between two looks took, in a program with one optimizer and one wrapper."""

    wrapper: int
    """Number of the wrapper, as in `WrapperSetup.number`; 0 for a model that fully_shard shards."""
    ranks: RankSet
    step: int
    """The last of them."""
    steps: int
    backwards: int
    kept: int
    """How many of the backwards added to gradients that were there."""
    synced: int
    """Forwards in training whose backward reduces; of fully_shard backwards that do."""
    alone: int
    """Forwards under no_sync; of fully_shard backwards that were told not to reduce."""


@dataclass(frozen=True, slots=True)
class SearchLook:
    """What searches of a wrapper for unused parameters have found."""

    wrapper: int
    ranks: RankSet
    looks: int
    """Iterations that were looked at."""
    found: int
    """How many of the iterations had an unused parameter on a rank."""
    last: int
    """Number of the last one, from 1."""
    steady: bool = False
    """Whether unused parameters had the same size together in each of the iterations and on each of these ranks; 0
    counts as well."""
    timed: int = 0
    """Searches that were timed, on the rank where they took longest."""
    search_s: float | None = None
    """Mean of these, without what the reduction of their results takes."""
    apart_s: float | None = None
    """Mean time from one search to the next, on that rank."""


@dataclass(frozen=True, slots=True)
class Unenclosed:
    """Backwards under no_sync whose forward was not, from one line."""

    wrapper: int
    ranks: RankSet
    count: int
    """At least so many on a rank."""
    frames: tuple[Frame, ...] = ()
    """Frames of the backward, innermost first."""


@dataclass(frozen=True, slots=True)
class Unfollowed:
    """Forward passes in training, from one line, that no backward pass followed before the next one from there."""

    wrapper: int
    ranks: RankSet
    count: int
    """At least so many on a rank."""
    frames: tuple[Frame, ...] = ()
    """Frames of the forward pass, innermost first."""
    handler: Frame | None = None
    """The `except` that goes on after an exception on the way, where one alone is around these lines."""


@dataclass(frozen=True, slots=True)
class Replicated:
    """A model given to nn.DataParallel in a process of the job."""

    ranks: RankSet
    model: str
    """Name of the class of the model."""
    devices: int | None
    """How many it is spread over; 0 where there is none, and it does nothing."""
    frames: tuple[Frame, ...] = ()
    """Where, innermost first."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """Tensors that were gathered from ranks, require no gradient, and are used where a backward goes through."""

    ranks: RankSet
    operation: str
    shape: tuple[int, ...]
    """Shape of what the first of these ranks gave, which requires a gradient."""
    frames: tuple[Frame, ...] = ()
    """Frames of the call, innermost first."""


@dataclass(frozen=True, slots=True)
class Syncs:
    """What was seen on one node."""

    paces: tuple[PaceLook, ...] = ()
    searches: tuple[SearchLook, ...] = ()
    unenclosed: tuple[Unenclosed, ...] = ()
    unfollowed: tuple[Unfollowed, ...] = ()
    replicated: tuple[Replicated, ...] = ()
    gathered: tuple[Gathered, ...] = ()
