"""Losses that are not finite and scales that differ: whose they are, and what is no fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.training.fingerprints import (
    BatchLook,
    OptimizerSetup,
    StepLook,
    TensorLook,
    Training,
    WrapperSetup,
)
from ddpdoctor.evidence.training.numerics import BufferLook, LossCount, LossLook, Numerics, ScaleLook
from ddpdoctor.evidence.training.shares import Share
from ddpdoctor.evidence.training.syncs import PaceLook, Syncs
from ddpdoctor.judge import Finding, NotApplicable
from ddpdoctor.watch.readers.numerics import RankNumbers, fold_numbers
from ddpdoctor.watch.readers.records import Shortener
from ddpdoctor_checks.training import find_batch_norm, find_buffers, find_nonfinite, find_scalers, numerics

LINE = (Frame("train.py", 7, "main", "loss.backward()"),)
Look = Callable[[Evidence], Iterable[Finding]]


def judge(
    look: Look, *nodes: Numerics, groups: tuple[tuple[int, ...], ...] = ((0, 1, 2, 3),), kept: int = 0
) -> list[Finding]:
    wrappers = tuple(WrapperSetup(number, "Net", RankSet(group)) for number, group in enumerate(groups, 1))
    setup = OptimizerSetup(1, "torch.optim.SGD", RankSet(range(4)), wrappers=wrappers)
    syncs = Syncs(paces=(PaceLook(1, RankSet(range(4)), 2, 1, kept + 1, kept, 1, kept),))
    training = tuple(
        Training(node, RankSet(range(4)), optimizers=(setup,), numerics=numerics, syncs=syncs)
        for node, numerics in enumerate(nodes)
    )
    return list(look(Evidence(training=training)))


def losses(first: dict[int, int], *, of: int = 20, ranks: int = 4, **more: Any) -> Numerics:
    return Numerics(
        losses=tuple(
            LossLook(rank, backward, "nan", step=backward, frames=LINE, **more)
            for rank, backward in first.items()
        ),
        counts=(LossCount(RankSet(range(ranks)), of, of),),
    )


def test_the_rank_whose_loss_was_first_is_the_origin() -> None:
    (found,) = judge(find_nonfinite, losses({0: 6, 1: 6, 2: 5, 3: 6}))
    assert found.ranks == RankSet([2])
    assert found.victims == RankSet([0, 1, 3])
    assert found.severity is None
    assert found.confidence == "high"
    assert found.where[0].line == 7
    assert found.details["step"] == 5


@pytest.mark.parametrize(
    ("code", "message", "decisive"),
    [
        ("ERR001", "probability tensor contains either `inf`, `nan` or element < 0", True),
        ("ERR001", "loss is not finite", True),
        ("ERR001", "name 'info' is not defined", False),
        ("ERR001", "no channel of that name", False),
        ("CKP002", "nan", False),
    ],
)
def test_a_failure_that_complains_of_such_numbers_follows(
    monkeypatch: pytest.MonkeyPatch, code: str, message: str, decisive: bool
) -> None:
    cause = SimpleNamespace(code=code, first=SimpleNamespace(message=message))
    monkeypatch.setattr(numerics, "diagnose", lambda evidence: SimpleNamespace(cause=cause))
    (found,) = judge(find_nonfinite, losses({0: 6, 1: 6, 2: 5, 3: 6}))
    assert (found.ranks, found.decisive) == (RankSet([2]), decisive)


def test_the_origin_is_found_over_nodes() -> None:
    one = Numerics((LossLook(0, 6, "nan"), LossLook(1, 6, "nan")), (LossCount(RankSet([0, 1]), 9, 9),))
    two = Numerics((LossLook(2, 6, "nan"), LossLook(3, 5, "inf")), (LossCount(RankSet([2, 3]), 9, 9),))
    (found,) = judge(find_nonfinite, one, two)
    assert found.ranks == RankSet([3])
    assert "inf" in found.message


def test_the_batch_and_its_samples_are_named_where_they_are_known() -> None:
    look = LossLook(1, 5, "nan", step=5, loader="train.py:3", epoch=2, index=4, samples=(87, 8), frames=LINE)
    after = LossLook(0, 6, "nan", step=6, frames=LINE)
    (found,) = judge(find_nonfinite, Numerics((look, after), (LossCount(RankSet([0, 1]), 9, 9),)))
    assert "batch 4 of epoch 2 of the loader at train.py:3" in found.message
    assert any("87, 8" in item.text for item in found.evidence)


def test_a_loss_that_stays_on_one_rank_is_told_as_that() -> None:
    (found,) = judge(find_nonfinite, losses({1: 5}))
    assert found.ranks == RankSet([1])
    assert not found.victims
    assert "stayed finite" in found.message


def test_all_ranks_at_once_blame_no_rank() -> None:
    (found,) = judge(find_nonfinite, losses(dict.fromkeys(range(4), 6)))
    assert found.severity == "warning"
    assert "on all at once" in found.message


def test_losses_that_become_finite_again_are_no_fault() -> None:
    assert judge(find_nonfinite, losses({0: 6, 1: 5}, lasts=False)) == []


GRADIENT: dict[str, Any] = {"what": "gradient", "wrapper": 1, "parameter": "body.weight"}
COUNT = (LossCount(RankSet(range(3)), 20, 20, 20),)


def test_a_gradient_that_turns_in_the_backward_is_its_ranks() -> None:
    turned = [
        LossLook(1, 5, "nan", step=5, index=4, epoch=1, frames=LINE, **GRADIENT),
        LossLook(1, 6, "nan", step=6, frames=LINE),
        *(LossLook(rank, 6, "nan", step=6, frames=LINE) for rank in (0, 2)),
        *(LossLook(rank, 6, "nan", step=6, frames=LINE, **GRADIENT) for rank in (0, 2)),
    ]
    (found,) = judge(find_nonfinite, Numerics(tuple(turned), COUNT))
    assert found.ranks == RankSet([1])
    assert found.victims == RankSet([0, 2])
    assert "though its loss is finite" in found.message
    assert (found.severity, found.confidence) == (None, "high")
    assert found.details["parameter"] == "body.weight"
    assert any("body.weight at backward pass 5" in item.text for item in found.evidence)


def test_gradients_that_spread_within_a_backward_are_no_origin() -> None:
    """SyncBatchNorm carries the NaN to the others in the backward of the loss that had it."""
    own = [LossLook(2, 5, "nan", step=5, frames=LINE)]
    spread = [LossLook(rank, 5, "nan", step=5, **GRADIENT) for rank in range(3)]
    after = [LossLook(rank, 6, "nan", step=6) for rank in (0, 1)]
    (found,) = judge(find_nonfinite, Numerics((*spread, *own, *after), COUNT))
    assert found.ranks == RankSet([2])
    assert found.details["what"] == "loss"


@pytest.mark.parametrize(("gradients", "told"), [(0, False), (2000, False), (1990, False), (1100, True)])
def test_gradients_that_were_not_sampled_are_a_second_explanation(gradients: int, told: bool) -> None:
    looks = tuple(LossLook(rank, 1500, "nan", step=1500) for rank in (0, 1))
    counts = (LossCount(RankSet([0, 1]), 2000, 2000, gradients),)
    (found,) = judge(find_nonfinite, Numerics(looks, counts))
    assert ("which was not sampled" in found.message) is told


def test_gradients_after_which_no_loss_turns_are_no_fault() -> None:
    looks = tuple(LossLook(1, 5, "nan", step=5, **GRADIENT) for _ in range(2))
    assert judge(find_nonfinite, Numerics(looks, COUNT)) == []


def test_a_micro_batch_of_the_step_before_is_the_origin_of_what_all_have() -> None:
    passing = LossLook(2, 6, "nan", step=2, lasts=False, frames=LINE, **GRADIENT)
    earlier = LossLook(1, 2, "inf", step=1, lasts=False, **GRADIENT)
    after = tuple(LossLook(rank, 9, "nan", step=3, frames=LINE) for rank in range(3))
    looks = Numerics((earlier, passing, *after), COUNT)
    (found,) = judge(find_nonfinite, looks)
    assert found.severity == "warning"  # it was passed over: each step has one backward
    (found,) = judge(find_nonfinite, looks, kept=3)
    assert found.ranks == RankSet([2])
    assert found.victims == RankSet([0, 1])
    assert "at step 2" in found.message
    assert found.confidence == "medium"
    (found,) = judge(find_nonfinite, Numerics((earlier, *after), COUNT), kept=3)
    assert found.severity == "warning"
    assert "on all at once" in found.message


def test_gradients_of_all_ranks_at_once_arise_in_each_backward() -> None:
    looks = [LossLook(rank, 5, "nan", step=5, frames=LINE, **GRADIENT) for rank in range(3)]
    after = [LossLook(rank, 6, "nan", step=6, frames=LINE) for rank in range(3)]
    (found,) = judge(find_nonfinite, Numerics((*looks, *after), COUNT))
    assert found.severity == "warning"
    assert "in the backward pass of each" in found.message


def test_ranks_that_made_other_numbers_of_backwards_make_it_less_sure() -> None:
    numerics = Numerics(
        (LossLook(0, 6, "nan"), LossLook(1, 5, "nan")),
        (LossCount(RankSet([0]), 20, 20), LossCount(RankSet([1]), 17, 17)),
    )
    (found,) = judge(find_nonfinite, numerics)
    assert found.confidence == "medium"


def test_no_loss_that_could_be_read_is_not_applicable() -> None:
    with pytest.raises(NotApplicable):
        judge(find_nonfinite, Numerics(counts=(LossCount(RankSet([0, 1]), 20, 0),)))


def scale(
    rank: int, *values: tuple[int, float], end: tuple[int, float] | None = None
) -> tuple[ScaleLook, ...]:
    rows = [ScaleLook(1, rank, step, value, frames=LINE if step == 1 else ()) for step, value in values]
    return (*rows, *([ScaleLook(1, rank, *end, final=True)] if end is not None else []))


def test_scales_that_part_are_named_with_the_odd_rank() -> None:
    same = [scale(rank, (1, 1024.0), (2, 1024.0), (4, 1024.0), (8, 1024.0)) for rank in (0, 2, 3)]
    odd = scale(1, (1, 1024.0), (2, 1024.0), (4, 1024.0), (6, 512.0), (8, 512.0))
    (found,) = judge(find_scalers, Numerics(scales=sum([*same, odd], ())))
    assert found.ranks == RankSet([1])
    assert found.details["first_step"] == 6
    assert "512 on rank 1" in found.message


def test_scales_that_follow_each_other_are_no_fault() -> None:
    rows = [scale(rank, (1, 1024.0), (3, 512.0), (4, 512.0), (7, 1024.0), (8, 1024.0)) for rank in range(4)]
    assert judge(find_scalers, Numerics(scales=sum(rows, ()))) == []


def test_a_rank_that_is_a_step_behind_is_compared_at_the_same_step() -> None:
    ahead = scale(0, (1, 8.0), (2, 8.0), (4, 8.0), (5, 4.0))
    behind = scale(1, (1, 8.0), (2, 8.0), (4, 8.0))
    assert judge(find_scalers, Numerics(scales=ahead + behind)) == []


def test_scales_that_become_equal_again_are_no_fault() -> None:
    one, other = scale(0, (1, 8.0), (2, 8.0), (4, 8.0)), scale(1, (1, 8.0), (2, 4.0), (4, 8.0))
    assert judge(find_scalers, Numerics(scales=one + other)) == []


def test_scales_that_were_equal_meanwhile_part_at_the_last_time() -> None:
    one = scale(0, (1, 8.0), (2, 8.0), (4, 8.0), (8, 8.0))
    other = scale(1, (1, 8.0), (2, 4.0), (4, 8.0), (8, 2.0))
    (found,) = judge(find_scalers, Numerics(scales=one + other))
    assert found.details["first_step"] == 8


def test_scales_of_ranks_that_hold_other_models_are_not_compared() -> None:
    rows = [scale(rank, (1, 8.0), (2, 8.0 if rank < 2 else 4.0)) for rank in range(4)]
    assert judge(find_scalers, Numerics(scales=sum(rows, ())), groups=((0, 1), (2, 3))) == []
    assert judge(find_scalers, Numerics(scales=sum(rows, ())), groups=()) == []
    assert len(judge(find_scalers, Numerics(scales=sum(rows, ())))) == 1


def fold(*events: Any) -> Numerics:
    numbers = RankNumbers()
    for event in events:
        numbers.take(event)
    return fold_numbers(
        {3: numbers}, Shortener(Path.cwd()), lambda rank, place: f"train.py:{rank}{place}" if place else ""
    )


def test_a_run_of_losses_lasts_until_a_finite_one() -> None:
    bad = {"event": "nonfinite", "number": 5, "value": "nan", "step": 5, "loader": 1, "epoch": 2, "index": 4}
    again = {**bad, "number": 9}
    (first, second) = fold(bad, {"event": "finite", "number": 7}, again).losses
    assert (first.lasts, second.lasts) == (False, True)
    assert first.loader == "train.py:31"
    healed = fold(bad, {"event": "losses", "count": 20, "checked": 20, "bad": 3, "since": 0})
    assert not healed.losses[0].lasts
    assert healed.counts == (LossCount(RankSet([3]), 20, 20),)


def test_runs_of_losses_and_of_each_gradient_are_apart() -> None:
    loss = {"event": "nonfinite", "what": "loss", "number": 5, "value": "nan"}
    other = {"what": "gradient", "model": 1, "name": "a"}
    gradient = {**loss, **other, "number": 4}
    healed = {"event": "finite", **other, "number": 6}
    end = {"event": "losses", "count": 9, "checked": 8, "bad": 2, "since": 5}
    numerics = fold(loss, gradient, healed, end, {**end, **other, "checked": 7, "since": 0})
    (first, second) = numerics.losses
    assert (first.what, first.lasts) == ("loss", True)
    assert (second.what, second.wrapper, second.parameter, second.lasts) == ("gradient", 1, "a", False)
    assert numerics.counts == (LossCount(RankSet([3]), 9, 8, 7),)


def buffers(first: tuple[float, float], *, door: str = "module", broadcasts: bool = True, name: str = "bn.running_mean",
            steps: tuple[int, int] = (6, 6)) -> list[Numerics]:  # fmt: skip
    """One evaluation on two nodes of one rank each."""
    return [
        Numerics(
            evaluations=(
                BufferLook(1, 1, step, door, RankSet([rank]), broadcasts,
                           {name: (Share(f"{norm}", RankSet([rank]), norm),)}, frames=LINE),
            )
        )
        for rank, (norm, step) in enumerate(zip(first, steps, strict=True))
    ]  # fmt: skip


def test_buffers_that_differ_at_an_evaluation_around_the_wrapper_are_named() -> None:
    (found,) = judge(find_buffers, *buffers((1.0, 2.0)))
    assert found.ranks == RankSet([0, 1])
    assert "bn.running_mean" in found.message
    assert "without its wrapper" in found.message
    assert found.where[0].line == 7


def test_a_wrapper_that_does_not_broadcast_is_told_as_that() -> None:
    (found,) = judge(find_buffers, *buffers((1.0, 2.0), door="wrapper", broadcasts=False))
    assert "broadcast_buffers=False" in found.message
    assert not any("through the wrapper" in fix.text for fix in found.fix)


@pytest.mark.parametrize(
    "made",
    [
        buffers((1.0, 1.0)),
        buffers((1.0, 1.0000001)),
        buffers((3.0, 4.0), name="bn.num_batches_tracked"),
        buffers((1.0, 2.0), steps=(6, 9)),
        buffers((1.0, 2.0))[:1],
    ],
    ids=["equal", "last bits", "counter", "other steps", "one rank"],
)
def test_evaluations_that_are_no_fault(made: list[Numerics]) -> None:
    assert judge(find_buffers, *made) == []


def test_buffers_of_ranks_that_hold_other_models_are_not_compared() -> None:
    assert judge(find_buffers, *buffers((1.0, 2.0)), groups=((0, 2), (1, 3))) == []


@pytest.mark.parametrize("differing", [(0, 1), (2, 3)])
def test_buffers_are_compared_in_each_group_that_has_the_wrapper(differing: tuple[int, int]) -> None:
    wrappers = tuple(WrapperSetup(1, "Net", RankSet(group)) for group in ((0, 1), (2, 3)))
    setup = OptimizerSetup(1, "torch.optim.SGD", RankSet(range(4)), wrappers=wrappers)
    shares = tuple(
        Share("odd" if rank == differing[1] else f"group {rank // 2}", RankSet([rank])) for rank in range(4)
    )
    look = BufferLook(1, 1, 6, "module", RankSet(range(4)), True, {"bn.running_mean": shares}, frames=LINE)
    numerics = Numerics(evaluations=(look,))
    training = Training(0, RankSet(range(4)), optimizers=(setup,), numerics=numerics)
    (found,) = find_buffers(Evidence(training=(training,)))
    assert found.ranks == RankSet(differing)


def test_buffers_of_one_norm_and_other_contents_are_no_rounding() -> None:
    shares = tuple(Share(f"order {rank}", RankSet([rank]), 1.0) for rank in range(2))
    look = BufferLook(1, 1, 6, "module", RankSet([0, 1]), True, {"bn.running_mean": shares}, frames=LINE)
    assert len(judge(find_buffers, Numerics(evaluations=(look,)))) == 1


def train_with_buffers(
    norms: dict[int, tuple[float, float]],
    *,
    name: str = "book.codes",
    broadcasts: bool = False,
    diverged: bool = False,
    trainable: bool = False,
    shape: tuple[int, ...] = (16, 8),
) -> list[Finding]:
    """Judge two ranks that hold a buffer of these norms at the steps 1 and 8."""
    wrapper = WrapperSetup(1, "Net", RankSet([0, 1]), frames=LINE, broadcasts=broadcasts)
    setup = OptimizerSetup(1, "torch.optim.SGD", RankSet([0, 1]), wrappers=(wrapper,))
    steps = []
    for place, step in enumerate((1, 8)):
        shares = tuple(Share(str(own[place]), RankSet([rank]), own[place]) for rank, own in norms.items())
        apart = len({share.digest for share in shares}) > 1
        own = RankSet([0, 1]) if trainable else RankSet()
        buffer = TensorLook(name, 1, "other", shape, values=shares, trainable=own)
        parts = [(0,), (1,)] if diverged else [(0, 1)]
        values = tuple(Share(str(part), RankSet(part)) for part in parts)
        steps.append(StepLook(1, step, values=values, others=shares, buffers=(buffer,) if apart else ()))
    batches = (BatchLook(1, "", 1, 1, (), (32, 8)),)
    training = Training(0, RankSet([0, 1]), (setup,), steps=tuple(steps), batches=batches)
    return list(find_buffers(Evidence(training=(training,))))


def test_buffers_that_each_rank_trains_with_on_its_own_are_named() -> None:
    (found,) = train_with_buffers({0: (1.0, 3.0), 1: (2.0, 5.0)})
    assert (found.confidence, found.ranks) == ("medium", RankSet([0, 1]))
    assert "book.codes" in found.message
    assert found.where[0].line == 7


@pytest.mark.parametrize(
    ("norms", "more"),
    [
        ({0: (1.0, 3.0), 1: (1.0, 3.0)}, {}),
        ({0: (1.0, 1.0), 1: (2.0, 2.0)}, {}),
        ({0: (1.0, 3.0), 1: (2.0, 3.0000001)}, {}),
        ({0: (1.0, 3.0), 1: (2.0, 5.0)}, {"name": "bn.running_mean"}),
        ({0: (1.0, 3.0), 1: (2.0, 5.0)}, {"broadcasts": True}),
        ({0: (1.0, 3.0), 1: (2.0, 5.0)}, {"diverged": True}),
        ({0: (1.0, 3.0), 1: (2.0, 5.0)}, {"trainable": True}),
        ({0: (1.0, 3.0), 1: (2.0, 5.0)}, {"shape": (32, 4)}),
    ],
    ids=[
        "equal",
        "constant",
        "last bits",
        "statistics",
        "broadcast",
        "replicas",
        "parameter",
        "row of a sample",
    ],
)
def test_buffers_in_training_that_are_no_fault(
    norms: dict[int, tuple[float, float]], more: dict[str, Any]
) -> None:
    with pytest.raises(NotApplicable):
        train_with_buffers(norms, **more)


@pytest.mark.parametrize(
    ("modules", "sizes", "count"), [(3, (4, 4), 1), (3, (4, 8), 0), (0, (4, 4), 0), (3, (), 0)]
)
def test_batch_norm_over_few_samples(modules: int, sizes: tuple[int, ...], count: int) -> None:
    wrapper = WrapperSetup(1, "Net", RankSet([0, 1]), frames=LINE, batch_norms=modules)
    setup = OptimizerSetup(1, "torch.optim.SGD", RankSet([0, 1]), wrappers=(wrapper,))
    batches = tuple(BatchLook(1, "", 1, index, (), (size, 3)) for index, size in enumerate(sizes, 1))
    found = list(find_batch_norm(Evidence(training=(Training(optimizers=(setup,), batches=batches),))))
    assert len(found) == count
    assert all((each.role, each.severity) == ("advice", "info") for each in found)


def test_batch_norm_is_told_of_the_ranks_of_all_groups() -> None:
    wrappers = tuple(
        WrapperSetup(1, "Net", RankSet(group), frames=LINE, batch_norms=3) for group in ((0, 1), (2, 3))
    )
    setup = OptimizerSetup(1, "torch.optim.SGD", RankSet(range(4)), wrappers=wrappers)
    batch = BatchLook(1, "", 1, 1, (), (4, 3))
    (found,) = find_batch_norm(Evidence(training=(Training(optimizers=(setup,), batches=(batch,)),)))
    assert found.ranks == RankSet(range(4))


def test_buffers_of_an_evaluation_are_folded_to_who_has_the_same() -> None:
    event: Any = {"event": "evaluation", "number": 1, "index": 2, "step": 8, "door": "module", "broadcasts": True,
             "names": ["mean", "odd"], "each": [["a", 1.0], None]}  # fmt: skip
    ranks = {rank: RankNumbers() for rank in range(3)}
    for rank, numbers in ranks.items():
        own: Any = {**event, "each": [["b" if rank == 1 else "a", 1.0], None]}
        numbers.take(own)
    (look,) = fold_numbers(ranks, Shortener(Path.cwd()), lambda rank, place: "").evaluations
    assert look.ranks == RankSet(range(3))
    assert [share.ranks for share in look.buffers["mean"]] == [RankSet([0, 2]), RankSet([1])]
    assert look.differing == 1
