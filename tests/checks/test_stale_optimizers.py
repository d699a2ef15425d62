"""An optimizer of parameters that FSDP has replaced, whose steps change nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.layout import make_layout
from ddpdoctor.evidence.training.fingerprints import TensorLook
from ddpdoctor.evidence.training.numerics import LossCount
from ddpdoctor.evidence.training.shares import Share
from ddpdoctor.facts import strategies
from tests.checks.training import STEP, Made, judge, only, tensor


def weight(*, model: int = 0, missing: str = "0-1", gradients: bool = False) -> TensorLook:
    made = tensor("parameter 0 of the optimizer", 2, model=model, missing=missing, reduced=False)
    return made if gradients else replace(made, gradients=())


def job(
    *tensors: TensorLook,
    steps: int = 4,
    sharded: bool = True,
    backwards: int = 4,
    moved: bool = False,
    others: int = 0,
) -> Evidence:
    """Return a job of an optimizer whose values stay from step to step.

    moved: they change in the last step. others: further optimizers.
    """
    made = Made(2, wrapped=False)
    made.layout = make_layout([(strategies.FSDP2.name, "", [0, 1])] if sharded else [])
    for step in range(1, steps + 1):
        made.look(step, "0-1", "0-1", *(tensors if step == 1 else (weight(),)))
    evidence = made.evidence()
    (node,) = evidence.training
    looks = list(node.steps)
    if moved:
        looks[-1] = replace(looks[-1], values=(Share("other", RankSet.span(2)),))
    numerics = replace(node.numerics, counts=(LossCount(RankSet.span(2), backwards, 0),))
    optimizers = (
        *node.optimizers,
        *(replace(node.optimizers[0], number=2 + each) for each in range(others)),
    )
    node = replace(node, steps=tuple(looks), numerics=numerics, optimizers=optimizers)
    return replace(evidence, training=(node,))


def test_steps_of_the_only_optimizer_change_nothing() -> None:
    found = only(job(weight()))
    assert (found.code, found.severity, found.confidence) == ("DDP006", "error", "high")
    assert (found.ranks, found.where[0].line) == (RankSet.span(2), STEP.line)
    assert "never get a gradient" in found.message
    assert found.message.endswith("Nothing is trained.")


@pytest.mark.parametrize(
    "evidence",
    [
        job(weight(), sharded=False),
        job(weight(), backwards=0),
        job(weight(), steps=2),
        job(weight(), moved=True),
        job(weight(), others=1),
        job(weight(missing="0")),
        job(weight(missing="", gradients=True)),
        job(weight(model=-1)),
        job(weight(), weight(model=-1, missing="", gradients=True)),
        job(),
    ],
    ids=[
        "no FSDP",
        "nothing was trained",
        "too few steps",
        "values that change",
        "another optimizer",
        "a gradient on one rank",
        "gradients",
        "parameters of a model, frozen so far",
        "parameters of a model beside them",
        "nothing known of them",
    ],
)
def test_an_optimizer_that_may_train(evidence: Evidence) -> None:
    assert "DDP006" not in {each.code for each in judge(evidence)}
