"""How far the numbers of two correct runs may lie apart, because their sums are taken in another order.

Each rounding changes a number by a part of at most ``u``, the unit roundoff of its dtype. Over a sum of ``n``
numbers in any order these add up to ``SAFETY * sqrt(n) * u``, with a probability of at least
``1 - 2 exp(-SAFETY**2 / 2)`` (Higham and Mary: A new approach to probabilistic rounding error analysis, SIAM J. Sci.
Comput. 41, 2019).
"""

from __future__ import annotations

import math

from ddpdoctor.evidence.training.references import Gap, StepGap

SAFETY = 8.0
"""All is well with a probability of 1 - 3e-14 for each sum."""
_UNITS = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "tfloat32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}
_COARSEST = 2.0**-3
"""Unit roundoff of any dtype that is not known, e.g. of eight bits."""
MOST = 0.25
"""A tolerance that is larger would hide a factor of two behind the error of a sketch."""


def find_unit(dtype: str) -> float:
    """Return the unit roundoff of a dtype."""
    return _UNITS.get(dtype, _COARSEST)


def find_tolerance(step: StepGap) -> float:
    """Return by what part of their size gradients of one step may differ.

    The longest sums go over all that the model is given and all of its parameters, and are taken in 32 bits at least.
    Where a step is computed in fewer bits, each layer rounds once more forward and once more backward.
    """
    whole = next(iter(step.gradients), None)
    if whole is None:
        return MOST
    given = step.samples.elements if step.samples is not None else 0
    summed = min(find_unit(whole.dtype), find_unit("float32"))
    tolerance = SAFETY * math.sqrt(max(1, given) + whole.elements) * summed
    unit = find_unit(step.precision) if step.precision else find_unit(whole.dtype)
    if unit > summed:
        tolerance += SAFETY * math.sqrt(4 * len(step.gradients)) * unit
    return min(MOST, tolerance)


def find_allowed(gap: Gap, gaps: tuple[Gap, ...], tolerance: float) -> float:
    """Return by how much one gradient may differ.

    What cancels out in one tensor (a bias before a normalization) is as exact as what it is the sum of, which is
    as large as in others: so the largest root mean square of a tensor counts for all.
    """
    largest = max((each.norm / math.sqrt(each.elements) for each in gaps if each.elements), default=0.0)
    return tolerance * max(gap.norm, largest * math.sqrt(gap.elements))


def find_update_tolerance(tolerance: float) -> float:
    """Return by what part updates may differ where gradients do by a tolerance.

    Optimizers that divide by the size of a gradient (Adam) turn it into little more than a sign. Of the elements a
    part of the size of the tolerance lies so near zero that their sign is chance, and each changes its update by
    up to twice its size.
    """
    return min(MOST, 2.0 * math.sqrt(tolerance))


def find_update_tolerances(step: StepGap) -> dict[str, float | None]:
    """Return by what part each update may differ, by the name of its tensor; None where it is chance.

    It is where the gradient is little more than rounding: that of a bias which cancels out of the loss, for example.
    """
    tolerance, gaps = find_tolerance(step), step.gradients[1:]
    found: dict[str, float | None] = {}
    for gap in gaps:
        part = find_allowed(gap, gaps, tolerance) / gap.norm if gap.norm else math.inf
        chance = part > max(tolerance, (MOST / 2.0) ** 2)
        found[gap.name] = None if chance else find_update_tolerance(part)
    return found


def find_start_tolerance(dtype: str) -> float:
    """Return by what part parameters may differ before the first step: both runs round them once or twice."""
    return 4.0 * find_unit(dtype)
