"""How much the steps of two runs differ: evidence that is judged later."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ddpdoctor.evidence.training.references import Gap, Samples, StepGap
from ddpdoctor.watch.against.sketches import APART, RunStep, Sketch, Tensor

LISTED = 400
"""Tensors of a step of which differences are kept: those that differ most, beside that of all."""

Steps = Mapping[tuple[int, int], RunStep]


@dataclass(frozen=True, slots=True)
class _Pair:
    """A tensor of both runs."""

    name: str
    place: int
    elements: int
    dtype: str
    job: Sketch
    reference: Sketch


def compare(job: Steps, reference: Steps) -> tuple[StepGap, ...]:
    """Return by how much the steps differ that both runs made with optimizers of one class.

    Args:
        job: steps of the job, of `ddpdoctor.watch.against.sketches.read_steps`.
        reference: those of the run that it is compared with.
    """
    known = {each for step in reference.values() for each in step.samples}
    return tuple(
        _compare_step(job, reference, key, known)
        for key in sorted(job)
        if key in reference and job[key].kind == reference[key].kind
    )


def _compare_step(job: Steps, reference: Steps, key: tuple[int, int], known: set[str]) -> StepGap:
    mine, other = job[key], reference[key]
    following = key[0], key[1] + 1
    moved = job.get(following), reference.get(following)
    uncompared: dict[str, str] = {}
    for name in dict.fromkeys([*mine.tensors, *other.tensors]):
        reason = _explain(mine.tensors.get(name), other.tensors.get(name))
        if reason is not None:
            uncompared[name] = reason
    drawn = [mine.drawn, other.drawn]
    first = reference.get((key[0], 1), other)
    return StepGap(
        optimizer=key[0],
        step=key[1],
        values=_measure(mine, other, lambda step, name: step.tensors[name].value),
        gradients=_measure(mine, other, lambda step, name: step.tensors[name].gradient),
        updates=_measure_updates(mine, other, *moved),
        uncompared=uncompared,
        apart=tuple(
            name
            for name, tensor in mine.tensors.items()
            if tensor.value is not None
            and tensor.gradient_problem == APART
            and name in other.tensors
            and other.tensors[name].gradient is not None
        ),
        moved=_measure_way(first, other, lambda tensor: tensor.value),
        turned=_measure_way(first, other, lambda tensor: tensor.gradient),
        samples=_compare_samples(mine, other, known),
        job_losses=mine.losses,
        reference_losses=other.losses,
        job_rates=mine.rates,
        reference_rates=other.rates,
        drawn=True if True in drawn else False if False in drawn else None,
        batch_norms=max(mine.batch_norms, other.batch_norms),
        precision=mine.precision or other.precision,
    )


def _explain(mine: Tensor | None, other: Tensor | None) -> str | None:
    """Return why a tensor's gradients cannot be compared; None where they can."""
    if mine is None or other is None:
        return f"only {'the reference' if mine is None else 'this job'} has it"
    if mine.shape != other.shape:
        return f"its shape is {list(mine.shape)} here and {list(other.shape)} in the reference"
    for tensor, whose in ((mine, "in this job"), (other, "in the reference")):
        problem = tensor.problem or tensor.gradient_problem
        if problem is not None:
            return f"{problem} ({whose})"
    return None


def _measure(mine: RunStep, other: RunStep, find: Callable[[RunStep, str], Sketch | None]) -> tuple[Gap, ...]:
    pairs = []
    for name, tensor in mine.tensors.items():
        beside = other.tensors.get(name)
        if beside is None or beside.shape != tensor.shape:
            continue
        one, two = find(mine, name), find(other, name)
        if one is not None and two is not None:
            dtype = (
                tensor.dtype if tensor.dtype == beside.dtype else min(tensor.dtype, beside.dtype, key=_bits)
            )
            pairs.append(_Pair(name, tensor.place, math.prod(tensor.shape), dtype, one, two))
    return _tell(pairs)


def _measure_way(first: RunStep, step: RunStep, find: Callable[[Tensor], Sketch | None]) -> float:
    """Return by how much the tensors of one run have changed since its first step."""
    squares = []
    for name, tensor in step.tensors.items():
        before = first.tensors.get(name)
        one, two = (find(before) if before is not None else None), find(tensor)
        if one is not None and two is not None:
            squares.append(math.dist(one, two) ** 2)
    return math.sqrt(math.fsum(squares))


def _measure_updates(
    mine: RunStep, other: RunStep, mine_next: RunStep | None, other_next: RunStep | None
) -> tuple[Gap, ...]:
    if mine_next is None or other_next is None:
        return ()
    after = {mine.step: mine_next, -1: other_next}

    def find(step: RunStep, name: str) -> Sketch | None:
        following = after[step.step] if step is mine else after[-1]
        before, then = step.tensors[name].value, following.tensors.get(name)
        if before is None or then is None or then.value is None:
            return None
        return tuple(b - a for a, b in zip(before, then.value, strict=True))

    return _measure(mine, other, find)


def _tell(pairs: list[_Pair]) -> tuple[Gap, ...]:
    if not pairs:
        return ()
    gaps = sorted((_make_gap(each) for each in pairs), key=lambda gap: gap.difference, reverse=True)
    whole = _Pair(
        "",
        -1,
        sum(each.elements for each in pairs),
        min((each.dtype for each in pairs), key=_bits),
        tuple(number for each in pairs for number in each.job),
        tuple(number for each in pairs for number in each.reference),
    )
    return (_make_gap(whole), *sorted(gaps[:LISTED], key=lambda gap: gap.place))


def _make_gap(pair: _Pair) -> Gap:
    square = math.fsum(each * each for each in pair.reference)
    crossed = math.fsum(a * b for a, b in zip(pair.job, pair.reference, strict=True))
    factor = crossed / square if square else 0.0
    return Gap(
        name=pair.name,
        place=pair.place,
        elements=pair.elements,
        dtype=pair.dtype,
        norm=math.sqrt(square),
        difference=math.dist(pair.job, pair.reference),
        factor=factor,
        residual=math.dist(pair.job, [factor * each for each in pair.reference]),
    )


def _compare_samples(mine: RunStep, other: RunStep, known: set[str]) -> Samples | None:
    if not mine.samples or not other.samples or mine.cut or other.cut:
        return None
    own, theirs = set(mine.samples), set(other.samples)
    return Samples(
        job=len(mine.samples),
        job_distinct=len(own),
        reference=len(other.samples),
        reference_distinct=len(theirs),
        shared=len(own & theirs),
        met=len(own & known),
        elements=other.elements,
    )


def _bits(dtype: str) -> int:
    digits = "".join(each for each in dtype if each.isdigit())
    return int(digits) if digits else 64
