"""What is said of a job that differs from its reference."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.evidence import Frame
from ddpdoctor.evidence.training.references import Reference
from ddpdoctor.judge import Fix
from ddpdoctor_checks.common.wording import count_of, join_words
from ddpdoctor_checks.training.reference.differences import (
    LOSS,
    ORDER,
    PART,
    RATE,
    SCALE,
    TENSORS,
    UNREDUCED,
    UPDATE,
    Difference,
    find_loss_ratio,
)

_NEAR = 0.02
"""Relative difference up to which a factor is that of the number of ranks."""
_NAMED = 3


def tell(found: Difference, reference: Reference, line: Frame | None) -> str:
    """Return the message."""
    base = f"those of the reference on {count_of(reference.ranks, 'rank')}"
    when, names = f"from step {found.step.step} on", _list(found.names)
    at = f" ({line.file}:{line.line})" if line is not None else ""
    if found.cause == SCALE:
        return f"Gradients of all parameters are {found.factor:.2f}x {base} {when}{at}: {_explain(found, reference)}."
    if found.cause == PART:
        return (
            f"Gradients of {names} are {found.factor:.2f}x {base} {when}{at}: {_explain(found, reference)}."
        )
    if found.cause == UNREDUCED:
        return (
            f"Gradients of {names} differ between ranks {when}, although the parameters and the loss are equal{at}: "
            f"each rank has a part of the gradient that the reference has. The reference agrees in "
            f"{_list(found.agreeing)}: a module between them does not reduce its gradient in the backward pass."
        )
    if found.cause == LOSS:
        return (
            f"The same samples and parameters give another loss than in the reference at step {found.step.step}{at}: "
            f"{_tell_ratio(found)}, and gradients that differ by no common factor."
        )
    if found.cause == TENSORS:
        return (
            f"Gradients of {names} differ from {base} at step {found.step.step}{at}, by {found.difference:.2g} of "
            f"their size; arithmetic explains {found.tolerance:.1g}. The factor is not the same for all of them."
        )
    if found.cause == RATE:
        linear = _is_near(found.factor, reference.widened)
        why = "follows the larger global batch" if linear else "depends on the number of ranks"
        return (
            f"The learning rate is {found.factor:.4g}x that of the reference at step {found.step.step}{at}, while "
            f"gradients agree: it {why}."
        )
    if found.cause == UPDATE:
        return (
            f"Updates of {names} differ from {base} at step {found.step.step}{at}, while gradients and learning rates "
            "agree: clipping, weight decay or the state of the optimizer depends on the number of ranks."
        )
    return (
        f"From step {found.step.step} on this job reads its samples in another order than the reference{at}: "
        "losses and gradients are not comparable from there on."
    )


def tell_seen(found: Difference, reference: Reference) -> Iterator[tuple[str, str]]:
    """Yield what it rests on: kind and text."""
    step = found.step
    ways = f"the same script on {count_of(reference.ranks, 'rank')}"
    if reference.arguments:
        ways += f" with {' '.join(reference.arguments)}"
    if reference.widened > 1:
        ways += f", its DataLoaders with {reference.widened} times the batch size"
    yield "reference", f"{ways} ({reference.directory})" if reference.directory else ways
    if step.samples is not None:
        yield (
            "samples",
            f"step {step.step}: {step.samples.job_distinct} different samples here, {step.samples.reference_distinct} "
            f"in the reference, {step.samples.shared} in both",
        )
    ratio = find_loss_ratio(step)
    if ratio is not None:
        yield "loss", f"step {step.step}: {ratio:.6g}x that of the reference (mean across ranks)"
    if found.cause != ORDER and step.values:
        yield "parameters", f"{count_of(len(step.values) - 1, 'parameter')} compared, equal before step 1"
    if found.tolerance:
        yield "arithmetic", f"differences up to {found.tolerance:.2g} of a gradient are rounding"
    if step.uncompared:
        first = [f"{name}: {why}" for name, why in list(step.uncompared.items())[:_NAMED]]
        yield "not compared", "; ".join(first)


def list_fixes(found: Difference, reference: Reference) -> tuple[Fix, ...]:
    """Return what to do about it."""
    if found.cause in (SCALE, PART):
        return (_fix_scale(found, reference),)
    if found.cause == UNREDUCED:
        return (
            Fix(
                "all-reduce the gradient of the input in the backward pass of the layer that splits its output",
                code="def backward(ctx, grad):\n    grad = grad.contiguous()\n    dist.all_reduce(grad, "
                "group=tensor_parallel_group)\n    return grad",
            ),
        )
    return (Fix(_FIXES[found.cause]),)


_FIXES = {
    LOSS: "look for what uses the rank or the world size in the forward pass and the loss: labels paired with other "
    "samples, means over unequal counts, normalization over the batch of one rank",
    TENSORS: "look at the backward pass of the modules that are named, and of those behind them: a reduction that is "
    "missing, or one that is done twice",
    RATE: "scale the learning rate with the global batch, not with the number of ranks alone; keep it where the global "
    "batch stays the same",
    UPDATE: "clip by the norm of all shards, and let no setting of the optimizer depend on the number of ranks",
    ORDER: "seed the sampler by a number that does not depend on the rank, and let it take every N-th index",
}


def _fix_scale(found: Difference, reference: Reference) -> Fix:
    many = _ratio(reference)
    if _is_near(found.factor, many):
        return Fix(
            "divide by the number of ranks that are summed over",
            code="dist.all_reduce(p.grad)\np.grad /= dist.get_world_size()",
        )
    return Fix(
        "divide by the number of ranks once: DistributedDataParallel and fully_shard take the mean across ranks, so "
        "the loss has to be a mean over the samples of the rank",
        code='criterion = nn.CrossEntropyLoss(reduction="mean")',
    )


def _explain(found: Difference, reference: Reference) -> str:
    """Return what a factor comes from, as far as the number of ranks and the losses show it."""
    many, ratio = _ratio(reference), find_loss_ratio(found.step)
    if _is_near(found.factor, many):
        if _is_near(ratio, many):
            return "the loss is multiplied by the number of ranks"
        return "they are summed across ranks and not divided by the number of ranks"
    if many > 1 and _is_near(found.factor, 1 / many):
        if _is_near(ratio, 1 / many):
            return (
                "the loss of a rank is a sum over its samples, or divided by the number of ranks, and the mean across "
                "ranks divides it again"
            )
        return "they are divided by the number of ranks twice"
    if ratio is not None and _is_near(found.factor, ratio):
        return "the loss is scaled by the same factor"
    return "their direction agrees, so it is a scale that differs"


def blames_loss(found: Difference) -> bool:
    """Whether gradients are scaled by the factor by which the loss is: no reduction has done that."""
    ratio = find_loss_ratio(found.step)
    return ratio is not None and _is_near(found.factor, ratio)


def _ratio(reference: Reference) -> float:
    return reference.job_ranks / reference.ranks


def _is_near(value: float | None, wanted: float) -> bool:
    return value is not None and abs(value - wanted) <= _NEAR * abs(wanted) and abs(wanted - 1.0) > _NEAR


def _tell_ratio(found: Difference) -> str:
    ratio = find_loss_ratio(found.step)
    return f"{ratio:.6g}x as large (mean across ranks)" if ratio is not None else "another one"


def _list(names: tuple[str, ...]) -> str:
    more = len(names) - _NAMED
    return join_words([*names[:_NAMED], *([f"{more} more"] if more > 0 else [])])
