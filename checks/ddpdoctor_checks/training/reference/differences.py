"""The first step at which a job differs from its reference beyond arithmetic, and in what; or why that is not known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddpdoctor.evidence.training.references import Gap, Reference, Samples, StepGap
from ddpdoctor.judge import CannotLook
from ddpdoctor_checks.common.wording import count_of, join_words
from ddpdoctor_checks.training.reference.arithmetic import (
    find_allowed,
    find_start_tolerance,
    find_tolerance,
    find_update_tolerance,
    find_update_tolerances,
)

SCALE, PART, UNREDUCED, LOSS, TENSORS, RATE, UPDATE, ORDER = (
    "scale", "scale of some", "not reduced", "loss", "tensors", "learning rate", "update", "data order",
)  # fmt: skip
"""What differs: all gradients by one factor; some of them by one; gradients of replicas among the ranks; the loss, and
with it gradients; gradients in direction; learning rates; what the optimizer makes of equal gradients; the samples."""
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs first."""

    cause: str
    step: StepGap
    names: tuple[str, ...] = ()
    """Tensors, in the order of the model."""
    factor: float | None = None
    agreeing: tuple[str, ...] = ()
    """Tensors that do not differ."""
    tolerance: float = 0.0
    difference: float = 0.0
    """Largest one of a tensor, as a part of its size."""


def find_difference(reference: Reference) -> Difference | None:
    """Return what differs first; None where nothing does.

    Raises:
        CannotLook: the runs cannot be compared; says why.
    """
    if not reference.steps:
        raise CannotLook(_explain_none(reference))
    numbers = sorted({step.optimizer for step in reference.steps})
    found = [
        each
        for number in numbers
        if (each := _judge([step for step in reference.steps if step.optimizer == number], reference))
    ]
    return min(found, key=lambda each: each.step.step, default=None)


def _explain_none(reference: Reference) -> str:
    reason = reference.reason or "nothing was recorded of it"
    if reference.error is not None:
        reason += f" with {reference.error}"
    elif reference.exit_code:
        reason += f" with exit code {reference.exit_code}"
    if reference.ended == "timed-out":
        reason += " because it reached its time limit"
    return f"not compared with the reference: {reason}"


def _judge(steps: Sequence[StepGap], reference: Reference) -> Difference | None:
    first = steps[0]
    if first.step != 1:
        raise CannotLook("the first step was not recorded in both runs")
    _require_equal_start(first)
    ordered = _judge_samples(first)
    if ordered is not None:
        return ordered
    found = _judge_gradients(first, reference) or _judge_rates(first) or _judge_updates(first)
    for step in steps[1:]:
        found = found or _judge_later(step, first)
    return found


def _require_equal_start(step: StepGap) -> None:
    """Refuse runs whose parameters differ before the first step.

    Raises:
        CannotLook: they do, or none could be compared.
    """
    if not step.values:
        raise CannotLook(f"no parameter could be compared with the reference: {_quote(step.uncompared)}")
    differing = [
        gap.name
        for gap in step.values[1:]
        if gap.difference > find_start_tolerance(gap.dtype) * max(gap.norm, 1e-30)
    ]
    if differing:
        raise CannotLook(
            f"{_list(differing)} {_plural(differing, 'differs', 'differ')} from the reference before the first "
            "step: the runs were initialized with different random numbers, or one of them resumed from a "
            "checkpoint; call torch.manual_seed with one number before the model is built"
        )


def _quote(uncompared: dict[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in list(uncompared.items())[:_NAMED]) or "there is none"


def _judge_samples(step: StepGap) -> Difference | None:
    """Return that other samples are read, where that is sure.

    Raises:
        CannotLook: they are others, and why is not known.
    """
    samples = step.samples
    if samples is None or is_same(samples):
        return None
    if samples.job_distinct != samples.reference_distinct:
        raise CannotLook(
            f"a step of this job reads {count_of(samples.job_distinct, 'sample')} and one of the reference "
            f"{samples.reference_distinct}: give the reference the same global batch, e.g. "
            "--against-args '--batch-size N'"
        )
    if samples.met or samples.shared:
        return Difference(ORDER, step)
    raise CannotLook(
        f"the samples of step {step.step} are not those of the reference: they are read in another order, or "
        "changed at random when they are loaded; seed both by a number that does not depend on the rank"
    )


def is_same(samples: Samples) -> bool:
    """Whether both runs read the same samples in a step."""
    return samples.job_distinct == samples.reference_distinct == samples.shared


def _judge_gradients(step: StepGap, reference: Reference) -> Difference | None:
    tolerance = find_tolerance(step)
    gaps = step.gradients[1:]
    differing = [gap for gap in gaps if gap.difference > find_allowed(gap, gaps, tolerance)]
    if not differing and not step.apart:
        if not gaps:
            raise CannotLook(f"no gradient could be compared: {_quote(step.uncompared)}")
        return None
    _require_determinate(step, reference)
    names = tuple(gap.name for gap in differing)
    agreeing = tuple(gap.name for gap in gaps if gap not in differing)
    equal_loss = is_loss_equal(step, tolerance)
    largest = max((gap.difference / gap.norm for gap in differing if gap.norm), default=0.0)
    if differing:
        cause, factor = _find_scale(step, differing, agreeing, tolerance)
        if cause is not None:
            return Difference(cause, step, names, factor, agreeing, tolerance, largest)
    if equal_loss is False:
        return Difference(LOSS, step, names or step.apart, None, agreeing, tolerance, largest)
    if step.apart:
        if equal_loss and agreeing:
            return Difference(UNREDUCED, step, step.apart, None, agreeing, tolerance)
        raise CannotLook(
            f"the ranks used different gradients of {_list(step.apart)}: which of them to compare is not known"
        )
    if step.samples is None and equal_loss is None:
        raise CannotLook("gradients differ, and whether both runs read the same samples was not seen")
    return Difference(TENSORS, step, names, None, agreeing, tolerance, largest)


def _require_determinate(step: StepGap, reference: Reference) -> None:
    """Refuse forward passes that must differ.

    Raises:
        CannotLook: random numbers are drawn in them, or a module works on the samples of one rank.
    """
    if step.drawn:
        raise CannotLook(
            f"gradients of step {step.step} differ, and the forward pass draws random numbers (dropout): each rank "
            "draws others than the reference; set dropout to 0 to compare"
        )
    if step.batch_norms and reference.ranks != reference.job_ranks:
        raise CannotLook(
            f"gradients of step {step.step} differ, and BatchNorm ({count_of(step.batch_norms, 'module')}) "
            "normalizes over the samples of one rank: convert it to SyncBatchNorm to compare"
        )


def _find_scale(
    step: StepGap, differing: Sequence[Gap], agreeing: Sequence[str], tolerance: float
) -> tuple[str | None, float | None]:
    """Return whether gradients differ by one factor, and which it is."""
    largest = max(differing, key=lambda gap: gap.norm)
    factor = step.gradients[0].factor if not agreeing else largest.factor
    allowed = tolerance * max(1.0, abs(factor))
    for gap in differing:
        wide = find_allowed(gap, tuple(step.gradients[1:]), allowed)
        if gap.residual > wide or abs(gap.factor - factor) * gap.norm > wide:
            return None, None
    if abs(factor - 1.0) <= tolerance:
        return None, None
    return (PART if agreeing or step.apart else SCALE), factor


def is_loss_equal(step: StepGap, tolerance: float) -> bool | None:
    """Whether the mean of the ranks' losses is that of the reference; None where that was not seen."""
    ratio = find_loss_ratio(step)
    return None if ratio is None else abs(ratio - 1.0) <= tolerance


def find_loss_ratio(step: StepGap) -> float | None:
    """Return the mean of the ranks' losses as a part of the reference's; None where it was not seen."""
    if not step.job_losses or not step.reference_losses:
        return None
    mean = math.fsum(step.job_losses) / len(step.job_losses)
    other = math.fsum(step.reference_losses) / len(step.reference_losses)
    return mean / other if other else None


def _judge_rates(step: StepGap) -> Difference | None:
    pairs = list(zip(step.job_rates, step.reference_rates, strict=False))
    factors = {mine / other for mine, other in pairs if other} | {
        0.0 for mine, other in pairs if not other and mine
    }
    apart = [factor for factor in factors if abs(factor - 1.0) > 1e-6]
    return Difference(RATE, step, factor=apart[0]) if apart else None


def _judge_updates(step: StepGap) -> Difference | None:
    tolerance = find_update_tolerance(find_tolerance(step))
    own = find_update_tolerances(step)
    gaps = [gap for gap in step.updates[1:] if own.get(gap.name, tolerance) is not None]
    rounding = {gap.name: find_start_tolerance(gap.dtype) * gap.norm for gap in step.values[1:]}
    differing = [
        gap
        for gap in gaps
        if gap.difference
        > find_allowed(gap, tuple(gaps), own.get(gap.name) or tolerance) + rounding.get(gap.name, 0.0)
    ]
    if not differing:
        return None
    names = tuple(gap.name for gap in differing)
    largest = max((gap.difference / gap.norm for gap in differing if gap.norm), default=0.0)
    same = tuple(gap.name for gap in gaps if gap not in differing)
    return Difference(UPDATE, step, names, step.updates[0].factor, same, tolerance, largest)


def _judge_later(step: StepGap, first: StepGap) -> Difference | None:
    """Compare a step of which it is known that the first one was equal.

    What was rounded otherwise goes on: gradients may differ as much as a difference of the parameters makes them, by
    how much the gradients of the reference itself changed where its parameters did.
    """
    if step.samples is not None and not is_same(step.samples):
        return Difference(ORDER, step) if step.samples.shared or step.samples.met else None
    found = _judge_rates(step)
    if found is not None or not step.values or not step.gradients or step.drawn:
        return found
    tolerance = find_tolerance(first)
    whole = step.values[0]
    strayed = step.step * find_update_tolerance(tolerance) * step.moved
    rounded = find_start_tolerance(whole.dtype) * whole.norm * math.sqrt(step.step)
    own = find_update_tolerances(first)
    values = [gap for gap in step.values[1:] if own.get(gap.name, tolerance) is not None]
    difference = whole.difference
    if len(values) < len(step.values) - 1:
        difference = math.sqrt(math.fsum(gap.difference**2 for gap in values))
    if difference > strayed + rounded:
        return Difference(
            UPDATE, step, tuple(_list_largest(values)), tolerance=tolerance, difference=difference
        )
    slope = step.turned / step.moved if step.moved else 0.0
    gradient = step.gradients[0]
    if gradient.difference > find_tolerance(step) * gradient.norm * step.step + 4 * slope * whole.difference:
        part = gradient.difference / gradient.norm if gradient.norm else 0.0
        names = tuple(_list_largest(step.gradients[1:]))
        return Difference(TENSORS, step, names, None, (), tolerance, part)
    return None


def _list_largest(gaps: Sequence[Gap]) -> Iterator[str]:
    order = sorted(gaps, key=lambda gap: gap.difference / (gap.norm or 1.0), reverse=True)
    yield from (gap.name for gap in order[:_NAMED])


def _list(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return join_words([*names[:_NAMED], *([f"{more} more"] if more > 0 else [])])


def _plural(names: Sequence[str], one: str, many: str) -> str:
    return one if len(names) == 1 else many
