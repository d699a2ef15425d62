"""Batches that ranks share and epochs in the same order; and what is no fault at all."""

from __future__ import annotations

import dataclasses

import pytest

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.layout import make_layout
from ddpdoctor.facts import strategies
from ddpdoctor_checks.training.data.batches import STREAM
from tests.checks.training import LOOP, Made, judge, only

SAMPLER = "torch.utils.data.sampler.RandomSampler"


def test_same_batches_are_named_by_their_loader() -> None:
    made = Made(2).look(1).look(2).loader()
    found = only(made.batch(1, "0-1").batch(2, "0-1").batch(3, "0-1"))
    assert (found.code, found.severity, found.ranks) == ("DAT001", "error", RankSet([0, 1]))
    assert (found.where[0].role, found.where[0].line) == ("culprit", LOOP.line)


def test_some_of_the_ranks_may_share_their_batches() -> None:
    made = Made(4).look(1).loader().batch(1, "0,2|1|3").batch(2, "0,2|1|3").batch(3, "0,2|1|3")
    found = only(made.epoch(1, {0: "a", 1: "b", 2: "a", 3: "c"}))
    assert (found.ranks, found.severity) == (RankSet([0, 2]), "error")


@pytest.mark.parametrize(("sampler", "workers", "told"), [(STREAM, 2, 1), (STREAM, 0, 0), (SAMPLER, 2, 0)])
def test_workers_of_a_stream_may_each_give_the_same(sampler: str, workers: int, told: int) -> None:
    made = Made(2).look(1).loader()
    made.loaders = [dataclasses.replace(each, sampler=sampler, workers=workers) for each in made.loaders]
    found = judge(made.batch(1, "0-1", salt="x").batch(2, "0-1", salt="x").batch(3, "0-1"))
    assert [each.code for each in found] == ["DAT001"] * told
    assert all("2 times in a row" in item.text for each in found for item in each.evidence[:1])


def test_what_is_no_missing_shard() -> None:
    own = Made(2).look(1).loader().batch(1, "0|1").batch(2, "0|1").batch(3, "0|1")
    once = Made(2).look(1).loader().batch(1, "0-1").batch(2, "0|1").batch(3, "0-1")
    over = (
        Made(2).look(1).loader().batch(1, "0-1", salt="x").batch(2, "0-1", salt="x").batch(3, "0-1", salt="x")
    )
    alone = Made(2).look(1).loader().batch(1, "0-1")
    assert judge(own) == judge(once) == judge(over) == judge(alone) == []
    parallel = Made(4).look(1).loader()
    parallel.groups = ["0,2", "1,3"]
    assert judge(parallel.batch(1, "0-1|2-3").batch(2, "0-1|2-3").batch(3, "0-1|2-3")) == []


def test_equal_noise_beside_a_loader_that_is_sharded_is_an_advice() -> None:
    made = Made(2).look(1).loader().epoch(1, {0: "a", 1: "b"})
    found = only(made.batch(1, "0-1").batch(2, "0-1").batch(3, "0-1"))
    assert (found.code, found.severity) == ("DAT001", "info")


def test_made_up_data_is_an_advice() -> None:
    made = Made(2).look(1).batch(1, "0-1", loader="").batch(2, "0-1", loader="").batch(3, "0-1", loader="")
    found = only(made)
    assert (found.code, found.severity) == ("DAT001", "info")


def test_wrapper_of_another_model_makes_no_replicas_of_a_plain_one() -> None:
    def train(strategy: str) -> list[str]:
        made = Made(2, wrapped=False).look(1).look(2).loader()
        made.layout = make_layout([(strategy, "", [0, 1])])
        return [each.code for each in judge(made.batch(1, "0-1").batch(2, "0-1").batch(3, "0-1"))]

    assert train(strategies.DDP.name) == []
    assert train(strategies.FSDP2.name) == ["DAT001"]


def test_only_ranks_of_one_wrapper_read_the_same_by_mistake() -> None:
    """A model that nothing wraps is one over the ranks only where their collectives keep it so."""

    def train(carried: float, values: str = "") -> Made:
        made = Made(2, wrapped=False).look(1).look(2, carried=carried).look(4, values, carried=2 * carried)
        return made.loader().batch(1, "0-1").batch(2, "0-1").batch(3, "0-1")

    assert only(train(1.0)).code == "DAT001"  # gradients are averaged by hand
    assert judge(train(0.0)) == []  # each rank trains a baseline
    assert judge(train(0.1)) == []  # and reduces its loss


def test_a_loader_that_only_a_baseline_reads_shards_nothing() -> None:
    beside = Made(2).look(1).loader().batch(1, "0-1").batch(2, "0-1").batch(3, "0-1")
    beside.batches = [dataclasses.replace(each, model=-1) for each in beside.batches]
    assert judge(beside) == []


def test_same_order_in_each_epoch() -> None:
    made = Made(2).look(1).loader().epoch(1, {0: "a", 1: "b"}).epoch(2, {0: "a", 1: "b"})
    found = only(made)
    assert (found.code, found.severity, found.ranks) == ("DAT002", "warning", RankSet([0, 1]))
    assert "set_epoch is not called (DistributedSampler)" in found.message
    ignored = Made(2).look(1).loader(epochs=(0, 1)).epoch(1, {0: "a", 1: "b"}).epoch(2, {0: "a", 1: "b"})
    assert "does not use it" in only(ignored).message
    own = Made(2).look(1).loader(sets_epoch=False, shuffle=None, epochs=(), sampler="shop.Fixed")
    assert only(own.epoch(1, {0: "a"}).epoch(2, {0: "a"})).severity == "info"
    by_length = Made(2).look(1).loader(sampler="shop.ByLength", shuffles=False)
    assert only(by_length.epoch(1, {0: "a"}).epoch(2, {0: "a"})).severity == "info"


def test_validation_may_go_through_the_same_loop() -> None:
    made = Made(2).look(1).loader()
    for number in range(1, 6):
        trains = number % 2
        made.epoch(number, {0: "a", 1: "b"} if trains else {0: "v", 1: "w"}, steps=8 * trains)
    assert only(made).code == "DAT002"


def test_what_is_no_forgotten_epoch() -> None:
    two = {0: "a", 1: "b"}
    cases = [
        Made(2).look(1).loader().epoch(1, two).epoch(2, {0: "c", 1: "d"}),
        Made(2).look(1).loader().epoch(1, two, ascending=True).epoch(2, two, ascending=True),
        Made(2).look(1).loader().epoch(1, two, steps=0).epoch(2, two, steps=0),
        Made(2).look(1).loader().epoch(1, two, batches=1).epoch(2, two, batches=1),
        Made(2).look(1).loader().epoch(1, two, compared=4).epoch(2, two, compared=4),
        Made(2).look(1).loader(shuffle=False).epoch(1, two).epoch(2, two),
        Made(2).look(1).loader().epoch(1, two).epoch(3, two),
        Made(2).look(1).loader().epoch(1, two).epoch(2, two).epoch(3, {0: "e", 1: "f"}),
    ]
    assert [judge(made) for made in cases] == [[]] * len(cases)


def mesh(world: int = 4) -> Made:
    """Two data-parallel by two tensor-parallel ranks; ranks 0 and 1 compute one layer together."""
    made = Made(world, wrapped=False).look(1).loader()
    made.layout = make_layout(
        [
            ("fully_shard", "dp", [0, 2]),
            ("fully_shard", "dp", [1, 3]),
            ("parallelize_module", "tp", [0, 1]),
            ("parallelize_module", "tp", [2, 3]),
        ]
    )
    return made


def test_tensor_parallel_ranks_read_the_same_batches() -> None:
    made = mesh().batch(1, "0-1|2-3").batch(2, "0-1|2-3").batch(3, "0-1|2-3")
    assert judge(made.epoch(1, {0: "a", 1: "a", 2: "b", 3: "b"})) == []


def test_tensor_parallel_ranks_with_batches_of_their_own() -> None:
    made = mesh().batch(1, "0|1|2|3").batch(2, "0|1|2|3").epoch(1, {0: "a", 1: "b", 2: "c", 3: "d"})
    found = only(made)
    assert (found.code, found.severity, found.ranks) == ("DAT009", "error", RankSet.span(4))
    assert found.details["groups"] == ["0-1", "2-3"]


def test_parts_of_the_same_samples_are_no_fault_of_the_loader() -> None:
    made = mesh().batch(1, "0|1|2|3").batch(2, "0|1|2|3").epoch(1, {0: "a", 1: "a", 2: "b", 3: "b"})
    assert judge(made) == []
    stream = mesh().batch(1, "0|1|2|3").batch(2, "0|1|2|3")
    assert [(each.code, each.severity) for each in judge(stream)] == [("DAT009", "warning")]


def test_data_parallel_ranks_of_a_mesh_that_share_their_batches() -> None:
    made = mesh().batch(1, "0-3").batch(2, "0-3").batch(3, "0-3").epoch(1, dict.fromkeys(range(4), "a"))
    found = only(made)
    assert (found.code, found.ranks) == ("DAT001", RankSet.span(4))
    assert "Ranks 0, 2 train on the same batches" in found.message
    assert "and so do ranks 1, 3: each sample is used 2 times" in found.message


def pipeline(*axes: tuple[str, str, list[int]]) -> Made:
    made = mesh()
    made.layout = make_layout(axes or [("PipelineStage", "pp", [0, 1]), ("PipelineStage", "pp", [2, 3])])
    return made


@pytest.mark.parametrize(
    ("orders", "groups"),
    [
        ("abcd", ["0-1", "2-3"]),
        ("aabb", None),
        ("aabc", ["2-3"]),
    ],
)
def test_stages_of_a_pipeline_read_the_same_samples(orders: str, groups: list[str] | None) -> None:
    made = pipeline().epoch(1, dict(enumerate(orders)))
    if groups is None:
        assert judge(made) == []
        return
    found = only(made)
    assert (found.code, found.severity, found.details["groups"]) == ("DAT009", "warning", groups)
    assert "the labels are not those of the inputs" in found.message


def test_a_rank_with_the_first_and_the_last_stage_has_inputs_and_labels() -> None:
    loop = ("PipelineStage, first and last on one rank", "pp", [0, 1, 2, 3])
    made = pipeline(("PipelineStage", "pp", [0, 1, 2, 3]), loop)
    assert judge(made.epoch(1, dict(enumerate("abcd")))) == []


def test_an_epoch_in_which_the_stages_agree_is_no_proof_of_other_labels() -> None:
    made = pipeline().epoch(1, dict(enumerate("abcd"))).epoch(2, dict(enumerate("aabb")))
    assert judge(made) == []


def test_groups_of_unknown_purpose_are_not_compared() -> None:
    made = mesh().batch(1, "0-3").batch(2, "0-3").batch(3, "0-3")
    made.layout = make_layout([("group", "", [0, 1]), ("group", "", [2, 3])])
    assert judge(made) == []
