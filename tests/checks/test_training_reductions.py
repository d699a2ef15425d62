"""Gradients that a program reduces by its own collectives, and divides by the number of ranks once more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.training.fingerprints import LossWeights, Reduced
from tests.checks.training import STEP, Made, judge, only

OWN = ((0.3, -0.2, 0.05, 0.4), (0.1, 0.6, -0.15, 0.2), (-0.1, 0.2, 0.4, 0.3))
"""Elements of the gradients of three ranks."""
MEAN = tuple(sum(each) / 3 for each in zip(*OWN, strict=True))
EVERYONE = RankSet.span(3)


def by_hand(
    factor: float,
    *,
    weights: tuple[float, ...] = (0.1,),
    before: tuple[tuple[float, ...], ...] = OWN,
    steps: int = 2,
) -> Made:
    """A job of three ranks that steps with a multiple of the mean; its losses have ten samples each."""
    made = Made(3, wrapped=False)
    for step in range(1, steps + 1):
        made.look(step)
        made.looks[-1] = replace(
            made.looks[-1],
            reduced=tuple(
                Reduced(rank, EVERYONE, own, tuple(factor * each for each in MEAN))
                for rank, own in enumerate(before)
            ),
            weights=tuple(LossWeights(rank, (10.0,) * len(weights), weights) for rank in range(3)),
        )
    return made


def codes(made: Made) -> list[str]:
    return [each.code for each in judge(made)]


def test_gradients_that_are_divided_twice() -> None:
    found = only(by_hand(1 / 3))
    assert (found.code, found.severity, found.ranks) == ("NUM009", "warning", EVERYONE)
    assert (
        "step with 1/3 of their mean across ranks: they are divided by the number of ranks twice"
        in found.message
    )
    assert found.details == {"factor": 1 / 3, "steps": [1, 2]}


@pytest.mark.parametrize(
    ("factor", "weights"),
    [(1.0, (0.1,)), (3.0, (0.1,)), (1 / 3, (0.3,)), (1 / 3, (0.1, 0.1, 0.1)), (0.25, (0.1,)), (1 / 3, ())],
    ids=[
        "the mean",
        "the sum",
        "a loss times the ranks",
        "three backward passes",
        "clipped",
        "losses unknown",
    ],
)
def test_other_multiples_and_losses_that_make_up_for_it_are_right(
    factor: float, weights: tuple[float, ...]
) -> None:
    assert codes(by_hand(factor, weights=weights)) == []


def test_one_step_says_nothing() -> None:
    assert codes(by_hand(1 / 3, steps=1)) == []


def test_gradients_that_hooks_reduced_in_the_backward_pass_are_no_rank_s_own() -> None:
    assert codes(by_hand(1 / 3, before=(MEAN, MEAN, MEAN))) == []


@pytest.mark.parametrize("after", [(0.3, 0.1, 0.0, 0.1), (0.0, 0.0, 0.0, 0.0), (0.1,)])
def test_gradients_that_are_no_multiple_of_the_mean_say_nothing(after: tuple[float, ...]) -> None:
    made = by_hand(1 / 3)
    rows = made.looks[-1].reduced
    made.looks[-1] = replace(made.looks[-1], reduced=(replace(rows[0], after=after), *rows[1:]))
    assert codes(made) == []


def test_a_rank_that_was_not_seen_leaves_it_open() -> None:
    made = by_hand(1 / 3)
    made.looks[-1] = replace(made.looks[-1], reduced=made.looks[-1].reduced[:2])
    assert codes(made) == []


def test_the_line_of_the_reduction_is_the_place() -> None:
    made = by_hand(1 / 3)
    line = Frame("train.py", 30, "reduce", "dist.all_reduce(bucket, op=self.op)")
    made.reduced = (line, STEP)
    assert [each.line for each in only(made).where] == [30]


def shared_out(*parts: tuple[float, ...], hooks: tuple[str, ...] = ()) -> Made:
    """A job of two ranks behind a wrapper: for each step what all tokens of either count for."""
    made = Made(2, hooks=hooks)
    for step, both in enumerate(parts, 1):
        made.look(step)
        rows = tuple(LossWeights(rank, (100 * part,), (0.01,)) for rank, part in enumerate(both))
        made.looks[-1] = replace(made.looks[-1], weights=rows)
    return made


def test_a_loss_divided_by_the_tokens_of_all_ranks_before_the_wrapper_averages() -> None:
    found = only(shared_out((0.52, 0.48), (0.4, 0.6), (0.5, 0.5)))
    assert (found.code, found.severity, found.confidence) == ("NUM009", "warning", "medium")
    assert "averages the gradients of ranks 0-1 once more: these are 1/2 of" in found.message
    assert found.details == {"factor": 0.5, "steps": [1, 2, 3]}


@pytest.mark.parametrize(
    "parts",
    [
        [(1.04, 0.96), (0.8, 1.2), (1.0, 1.0)],
        [(0.5, 0.5)] * 4,
        [(0.52, 0.48), (0.5, 0.5), (0.5, 0.5)],
        [(0.52, 0.48), (0.4, 0.6), (0.3, 0.3)],
    ],
    ids=["times the ranks", "a factor that may be meant", "one step", "another sum in one step"],
)
def test_losses_that_are_not_shared_out_over_ranks(parts: list[tuple[float, ...]]) -> None:
    assert codes(shared_out(*parts)) == []


def test_a_hook_of_the_wrapper_may_sum() -> None:
    assert codes(shared_out((0.52, 0.48), (0.4, 0.6), hooks=("sum_hook",))) == []


def test_a_wrapper_whose_ranks_are_not_known_leaves_it_open() -> None:
    made = shared_out((0.52, 0.48), (0.4, 0.6))
    made.groups = [""]
    assert codes(made) == []
