"""Rows within events of training: what stands in lists, one after the other, to be short."""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence


class TensorRow(NamedTuple):
    """One tensor of an optimizer or of its models, as a row of ``tensors``."""

    name: str
    kind: str
    """parameter, or other: a buffer, or a parameter that the optimizer does not have."""
    model: int
    """Number of the wrapper, below zero of a model without one; 0 where it is not known."""
    shape: Sequence[int]
    dtype: str
    trainable: bool
    known: int
    """Whether DistributedDataParallel knows it: 0 no, 1 it reduces its gradient, 2 it was told to ignore it."""
    unreadable: str | None
    """Why it has no fingerprint."""


class WrapperRow(NamedTuple):
    """Forward passes of one wrapper since the last look, as a row of ``step``."""

    number: int
    synced: int
    alone: int
    """Forward passes without a reduction of gradients; ``synced`` are those with one."""
    last: int
    """Kind of the last one: 1 with, 0 without, -1 there was none."""
    bypass: Any
    """Module and frames of a call around the wrapper."""


class LookRow(NamedTuple):
    """DistributedDataParallel's own times of one iteration in microseconds, as a row of ``times``; -1 is unknown."""

    iteration: int
    computing: int
    first_bucket: int
    exposed: int
    reduction: int
    after: int


class WaitRow(NamedTuple):
    """How long one step waited for communication of shards and of stages, as a row of ``times``; in microseconds."""

    step: int
    took: int
    """The whole step."""
    gather: int
    reduce: int
    stage: int
    bytes: int
    """Of parameters that were gathered in it."""


PHASES = 7
"""Number of phases into which the time of a step is divided; `core.stopwatch` of the hook names them."""


class Column(NamedTuple):
    """Steps in a row, as a row of ``times``: the times of the phases and the meetings stand in it one by one."""

    first: int
    steps: int
    reduced: int
    spent: tuple[int, ...]
    """Microseconds by phase."""
    sampled: int
    """Step whose meetings are kept."""
    met: int
    marks: tuple[int, ...]
    """When the rank reached the others, in microseconds of its monotonic clock."""

    def to_row(self) -> list[int]:
        """Return it as it is written."""
        return [self.first, self.steps, self.reduced, *self.spent, self.sampled, self.met, *self.marks]

    @classmethod
    def from_row(cls, row: Sequence[int]) -> Column:
        """Return what was written."""
        spent = 3 + PHASES
        first, steps, reduced, sampled, met = (*row[:3], *row[spent : spent + 2])
        return cls(first, steps, reduced, tuple(row[3:spent]), sampled, met, tuple(row[spent + 2 :]))


def choose_sampled(first: int, width: int) -> int:
    """Return the step of a column whose meetings are kept: the same on every rank, and none that comes evenly."""
    while width > 1:
        width //= 2
        first += width * ((first // width * 2654435761 >> 13) & 1)
    return first
