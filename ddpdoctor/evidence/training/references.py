"""A job beside its reference, the same script on another number of ranks: by how much the two differ, step by step.

Made by ``run --against`` from what the ranks of both runs wrote down (``ddpdoctor_watch/training/reference.py``).
Differences and norms come from sketches: they have a standard error of an eighth, factors have none of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Gap:
    """How much one tensor of the job differs from the same tensor of the reference."""

    name: str
    """Qualified; empty for all tensors together."""
    place: int
    """Among the parameters of the optimizer."""
    elements: int
    dtype: str
    norm: float
    """Norm of the reference's tensor."""
    difference: float
    """Norm of the difference."""
    factor: float
    """Factor by which the reference's tensor comes nearest to the job's."""
    residual: float
    """Norm of what differs then."""


@dataclass(frozen=True, slots=True)
class Samples:
    """What the models were given in a step, as far as it was seen."""

    job: int
    """Samples of all ranks, and of them those that are not equal to another one."""
    job_distinct: int
    reference: int
    reference_distinct: int
    shared: int
    """Distinct samples that both have."""
    met: int
    """Distinct samples of the job at this step that the reference had at any step that was compared."""
    elements: int = 0
    """Elements in what the reference's models were given."""


@dataclass(frozen=True, slots=True)
class StepGap:
    """One step of one optimizer in both runs."""

    optimizer: int
    step: int
    values: tuple[Gap, ...] = ()
    """Parameters before the step, all together first; empty where none could be compared."""
    gradients: tuple[Gap, ...] = ()
    updates: tuple[Gap, ...] = ()
    """What the step made of the parameters; empty where the next step was not looked at."""
    uncompared: dict[str, str] = field(default_factory=dict)
    """Parameter -> why it was not compared."""
    apart: tuple[str, ...] = ()
    """Parameters that are equal on all ranks of the job before the step, and whose gradients are not: in order."""
    moved: float = 0.0
    """Norm of what the reference's parameters have changed by since its first step."""
    turned: float = 0.0
    """Norm of what the reference's gradients have changed by since its first step."""
    samples: Samples | None = None
    job_losses: tuple[float, ...] = ()
    """Mean of each rank over the backward passes of the step; empty where a loss was not read."""
    reference_losses: tuple[float, ...] = ()
    job_rates: tuple[float, ...] = ()
    reference_rates: tuple[float, ...] = ()
    drawn: bool | None = None
    """A forward pass drew random numbers in either run; None where that was not seen."""
    batch_norms: int = 0
    precision: str = ""
    """The dtype of least precision that either run computes in; empty where it is that of the tensors."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The run that a job is compared with."""

    ranks: int
    state: str = "compared"
    """compared, or skipped: there was none."""
    reason: str | None = None
    """Why it was skipped, or why it has no steps."""
    arguments: tuple[str, ...] = ()
    """That the script was given beside its own."""
    widened: int = 1
    """Times the batch size of the job's DataLoaders that the reference's were given."""
    job_ranks: int = 0
    directory: str | None = None
    """Its run directory, seen from that of the job."""
    ended: str = "ended"
    """ended, enough (stopped once it had made the steps that are compared), timed-out or interrupted."""
    exit_code: int | None = None
    error: str | None = None
    """The exception that ended it, where one did."""
    steps: tuple[StepGap, ...] = ()
