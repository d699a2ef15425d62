"""What nodes saw of one optimizer, joined: each knows its own ranks only."""

from __future__ import annotations

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.training.fingerprints import Born, OptimizerSetup, Reduced, StepLook, Training
from ddpdoctor.evidence.training.merging import join_optimizers
from ddpdoctor.evidence.training.shares import Share


def born(name: str, **held: list[int]) -> Born:
    return Born(1, name, tuple(Share(digest, RankSet(ranks)) for digest, ranks in held.items()))


def test_parameters_before_the_wrap_are_compared_across_nodes() -> None:
    first, second = RankSet([0, 1]), RankSet([2, 3])
    nodes = [
        Training(0, first, optimizers=(OptimizerSetup(1, "SGD", first, born=(born("a", x=[0], y=[1]), born("b", z=[0, 1]))),)),
        Training(1, second, optimizers=(OptimizerSetup(1, "SGD", second, born=(born("a", x=[2], y=[3]), born("c", z=[2]))),)),
    ]  # fmt: skip
    ((setup, _),) = join_optimizers(nodes)
    assert setup.ranks == RankSet.span(4)
    assert {each.name: {share.digest: share.ranks for share in each.values} for each in setup.born} == {
        "a": {"x": RankSet([0, 2]), "y": RankSet([1, 3])},
        "b": {"z": first},
        "c": {"z": RankSet([2])},
    }


def test_gradients_of_all_nodes_belong_to_one_step() -> None:
    rows = [Reduced(rank, RankSet.span(2), (float(rank),), (0.5,)) for rank in range(2)]
    nodes = [
        Training(
            row.rank,
            RankSet([row.rank]),
            optimizers=(OptimizerSetup(1, "SGD", RankSet([row.rank])),),
            steps=(StepLook(1, 4, reduced=(row,)),),
        )
        for row in rows
    ]
    ((_, (look,)),) = join_optimizers(nodes)
    assert look.reduced == tuple(rows)
