"""Ranks that made other numbers of steps: whose they are, and what is no fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.training.fingerprints import (
    OptimizerSetup,
    StepLook,
    StepSite,
    TensorLook,
    Training,
    WrapperSetup,
)
from ddpdoctor.evidence.training.numerics import LossCount, Numerics
from ddpdoctor.evidence.training.shares import Share
from ddpdoctor.judge import Finding
from ddpdoctor_checks.training import find_skipped
from ddpdoctor_checks.training.replicas.counts import find_skipping


def fold(counts: dict[int, int]) -> tuple[Share, ...]:
    return tuple(
        Share(str(count), RankSet([rank for rank, each in counts.items() if each == count]))
        for count in dict.fromkeys(counts.values())
    )


LINE = (Frame("train.py", 7, "main", "optimizer.step()"),)


OTHER = (Frame("train.py", 11, "main", "optimizer.step()"),)


def judge(
    steps: dict[int, int], *, parts: bool = True, wrapped: bool = True, extra: dict[int, int] | None = None
) -> list[Finding]:
    ranks = RankSet(steps)
    wrapper = WrapperSetup(1, "Net", ranks, frames=LINE)
    setup = OptimizerSetup(
        1,
        "torch.optim.SGD",
        ranks,
        frames=LINE,
        models={"1": "Net"},
        wrappers=(wrapper,) if wrapped else (),
        steps=tuple(Share(str(count), RankSet([rank])) for rank, count in steps.items()),
    )
    if extra is not None:
        usual = {rank: count - extra.get(rank, 0) for rank, count in steps.items()}
        sites = [StepSite(where, fold(counts)) for where, counts in ((LINE, usual), (OTHER, extra))]
        setup = replace(setup, sites=tuple(sites))
    apart = tuple(Share(f"{rank if parts else 0}", RankSet([rank]), 1.0 + rank) for rank in steps)
    same = (Share("a", ranks),)
    tensor = TensorLook("weight", 1, trainable=ranks, reduced=ranks, values=apart if parts else same)
    looks = (
        StepLook(1, 1, values=same, gradients=same),
        StepLook(1, 2, values=apart if parts else same, gradients=same, tensors=(tensor,) if parts else ()),
    )
    numerics = Numerics(counts=(LossCount(ranks, 30, 30),))
    return list(find_skipped(Evidence(training=(Training(0, ranks, (setup,), looks, numerics=numerics),))))


def test_a_rank_that_left_steps_out_is_named() -> None:
    (found,) = judge({0: 30, 1: 27, 2: 30})
    assert found.ranks == RankSet([1])
    assert found.victims == RankSet([0, 2])
    assert "27 steps on rank 1" in found.message
    assert found.where[0].line == 7


def test_a_rank_that_alone_makes_steps_at_another_line_is_the_culprit() -> None:
    (found,) = judge({0: 35, 1: 30, 2: 30}, extra={0: 5})
    assert (found.ranks, found.victims) == (RankSet([0]), RankSet([1, 2]))
    assert found.where[0].line == 11
    assert found.message.startswith("Only rank 0 takes steps of SGD at train.py:11")
    (found,) = judge({0: 35, 1: 29, 2: 30}, extra={0: 5})
    assert found.where[0].line == 7
    (found,) = judge({0: 35, 1: 32, 2: 30}, extra={0: 5, 1: 2, 2: 0})
    assert found.where[0].line == 7


def test_equal_replicas_and_equal_numbers_are_no_fault() -> None:
    assert judge({0: 30, 1: 27}, parts=False) == []
    assert judge({0: 30, 1: 30}) == []
    assert judge({0: 30, 1: 27}, wrapped=False) == []


@pytest.mark.parametrize(
    ("steps", "ranks"),
    [
        ({0: 30, 1: 27}, [1]),
        ({0: 21, 1: 24}, [0, 1]),
        ({0: 15, 1: 14}, [1]),
        ({0: 28, 1: 28, 2: 27}, [0, 1, 2]),
    ],
)
def test_who_left_steps_out_is_told_by_backwards(steps: dict[int, int], ranks: list[int]) -> None:
    assert find_skipping(steps, dict.fromkeys(steps, 30)) == RankSet(ranks)
