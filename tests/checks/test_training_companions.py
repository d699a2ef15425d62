"""Models beside the trained one: which of them have to be alike on all ranks, and when they are not."""

from __future__ import annotations

import dataclasses

import pytest

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.training.fingerprints import OptimizerSetup, StepLook, Training, WrapperSetup
from ddpdoctor.evidence.training.numerics import CompanionLook, Numerics
from ddpdoctor.evidence.training.shares import Share
from ddpdoctor.judge import Finding, NotApplicable
from ddpdoctor_checks.training import find_companions

LINE = (Frame("train.py", 7, "main", "target = teacher(x)"),)


def look(step: int, *norms: float, model: str = "Net", first: int = 0) -> CompanionLook:
    """Return what ranks from ``first`` on held before a step: the norm is their digest too."""
    groups: dict[float, list[int]] = {}
    for rank, norm in enumerate(norms, first):
        groups.setdefault(norm, []).append(rank)
    values = tuple(Share(str(norm), RankSet(who), norm) for norm, who in groups.items())
    return CompanionLook(1, model, 1, step, 4, values, LINE)


def judge(
    *looks: CompanionLook, groups: tuple[tuple[int, ...], ...] = ((0, 1),), last: int = 8
) -> list[Finding]:
    wrappers = tuple(WrapperSetup(number, "Net", RankSet(group)) for number, group in enumerate(groups, 1))
    world = RankSet(rank for group in groups for rank in group)
    setup = OptimizerSetup(1, "torch.optim.SGD", world, wrappers=wrappers)
    nodes = [Numerics(companions=looks[:1]), Numerics(companions=looks[1:])]  # each node has some of them
    training = tuple(
        Training(node, world, optimizers=(setup,), steps=(StepLook(1, last),), numerics=numerics)
        for node, numerics in enumerate(nodes)
    )
    return list(find_companions(Evidence(training=training)))


def test_a_copy_that_differs_from_the_start_was_made_before_the_wrap() -> None:
    (found,) = judge(look(1, 1.0, 2.0), look(8, 1.1, 2.1))
    assert found.ranks == RankSet([0, 1])
    assert "from the first step on" in found.message
    assert "after it is wrapped" in found.fix[0].text
    assert found.where[0].line == 7
    assert (found.severity, found.confidence) == (None, "high")


def test_one_that_parts_later_is_updated_on_some_ranks_only() -> None:
    (found,) = judge(look(1, 1.0, 1.0), look(4, 1.1, 1.0), look(8, 1.2, 1.0))
    assert "since step 4" in found.message
    assert "every rank" in found.fix[0].text


def test_steps_after_the_last_sampled_one_say_nothing_of_a_companion() -> None:
    """A job on a GPU whose samples took their share of the time with step 4, and that ended with step 129."""
    wrapper = WrapperSetup(1, "Net", RankSet([0, 1]))
    setup = OptimizerSetup(1, "torch.optim.SGD", RankSet([0, 1]), wrappers=(wrapper,))
    steps = (StepLook(1, 1), StepLook(1, 2), StepLook(1, 4), StepLook(1, 129, final=True))
    numerics = Numerics(companions=(look(1, 1.0, 2.0), look(2, 1.1, 2.1), look(4, 1.2, 2.2)))
    training = Training(0, RankSet([0, 1]), optimizers=(setup,), steps=steps, numerics=numerics)
    (found,) = find_companions(Evidence(training=(training,)))
    assert "from the first step on" in found.message


def test_another_network_that_never_moves_may_be_meant_to_differ() -> None:
    (found,) = judge(look(1, 1.0, 2.0, model="Scorer"), look(8, 1.0, 2.0, model="Scorer"))
    assert (found.severity, found.confidence) == ("warning", "medium")


@pytest.mark.parametrize(
    "looks",
    [
        (look(1, 1.0, 1.0), look(8, 1.1, 1.1)),
        (look(1, 1.0, 2.0), look(8, 1.1, 1.1)),  # made equal since
        (look(8, 1.0, 2.0),),  # ran once
        (look(1, 1.0, 2.0), look(2, 1.1, 2.1)),  # an optimizer steps it by now, or it is gone
        (look(1, 1.0), look(8, 1.1)),  # of one rank
    ],
)
def test_what_is_equal_or_ran_once_is_no_fault(looks: tuple[CompanionLook, ...]) -> None:
    assert judge(*looks) == []


def test_ranks_of_other_groups_may_hold_another() -> None:
    values = (1.0, 1.0, 2.0, 2.0)
    assert judge(look(1, *values), look(8, *values), groups=((0, 1), (2, 3))) == []


def test_without_a_wrapper_ranks_may_hold_parts_of_one() -> None:
    training = Training(
        0, RankSet([0, 1]), numerics=Numerics(companions=(look(1, 1.0, 2.0), look(8, 1.0, 2.0)))
    )
    with pytest.raises(NotApplicable):
        list(find_companions(Evidence(training=(training,))))


def test_without_such_a_model_there_is_nothing_to_say() -> None:
    with pytest.raises(NotApplicable):
        list(find_companions(Evidence(training=(Training(0, RankSet([0, 1])),))))


def test_members_of_an_ensemble_that_each_rank_meets_in_another_order() -> None:
    """Each rank has trained one and got copies of the others; its own runs first."""
    second = [dataclasses.replace(each, number=2) for each in (look(1, 2.0, 1.0), look(8, 2.0, 1.0))]
    assert judge(look(1, 1.0, 2.0), look(8, 1.0, 2.0), *second) == []
    other = [dataclasses.replace(each, number=2) for each in (look(1, 2.0, 3.0), look(8, 2.0, 3.0))]
    assert judge(look(1, 1.0, 2.0), look(8, 1.0, 2.0), *other)
