"""A job beside its reference (`run --against`): losses, gradients, updates and parameters of both, step by step."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.training.references import Gap, Reference, StepGap
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.words import count

STEPS_SHOWN = 40
TENSORS_SHOWN = 24


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """One step in both runs."""

    step: str
    job_loss: str
    reference_loss: str
    rate: str
    values: str
    gradients: str
    updates: str
    samples: str


@dataclass(frozen=True, slots=True)
class ComparedTensor:
    """One parameter's gradient at the first step."""

    name: str
    norm: str
    factor: str
    rest: str


@dataclass(frozen=True, slots=True)
class ComparedView:
    """One reference."""

    title: str
    reason: str | None
    """Why there is nothing to compare."""
    steps: tuple[ComparedStep, ...]
    tensors: tuple[ComparedTensor, ...]


def view_compared(evidence: Evidence, caps: Caps) -> tuple[ComparedView, ...]:
    """Return the references of a job; none where it was not compared."""
    return tuple(_view(reference, caps) for reference in evidence.references)


def _view(reference: Reference, caps: Caps) -> ComparedView:
    several = len({step.optimizer for step in reference.steps}) > 1
    tensors = reference.steps[0].gradients[1:] if reference.steps else ()
    return ComparedView(
        f"{count(reference.job_ranks, 'rank')} beside {count(reference.ranks, 'rank')}",
        reference.reason if not reference.steps else None,
        tuple(
            _view_step(step, several=several)
            for step in caps.take(reference.steps, STEPS_SHOWN, "steps beside the reference")
        ),
        tuple(
            ComparedTensor(
                gap.name, f"{gap.norm:.4g}", f"{gap.factor:.3f}", _show_share(gap.residual, gap.norm)
            )
            for gap in caps.take(tensors, TENSORS_SHOWN, "gradients beside the reference")
        ),
    )


def _view_step(step: StepGap, *, several: bool) -> ComparedStep:
    seen = step.samples
    return ComparedStep(
        f"{step.step:,}" + (f" of optimizer {step.optimizer}" if several else ""),
        _show_mean(step.job_losses),
        _show_mean(step.reference_losses),
        _show_rates(step),
        _show_gap(step.values),
        _show_gap(step.gradients),
        _show_gap(step.updates),
        f"{seen.shared:,} of {seen.reference_distinct:,}" if seen is not None else "",
    )


def _show_mean(losses: Sequence[float]) -> str:
    return f"{statistics.fmean(losses):.6g}" if losses else ""


def _show_rates(step: StepGap) -> str:
    told = [", ".join(f"{rate:g}" for rate in rates) for rates in (step.job_rates, step.reference_rates)]
    return told[0] if told[0] == told[1] else " / ".join(each or "?" for each in told)


def _show_gap(gaps: Sequence[Gap]) -> str:
    """Return the difference of all tensors together as a share of the norm, and the factor that is in it."""
    if not gaps:
        return ""
    whole = gaps[0]
    share = _show_share(whole.difference, whole.norm)
    return f"{share}, {whole.factor:.3f}x" if abs(whole.factor - 1) >= 0.005 else share


def _show_share(part: float, whole: float) -> str:
    if not part:
        return "0"
    return f"{part / whole:.1e}" if whole else "all"
