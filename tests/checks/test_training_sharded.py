"""Gradients that are averaged over the wrong ranks, not at all, or with unequal weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import ddpdoctor_checks
from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.layout import make_layout
from ddpdoctor.evidence.training.fingerprints import Born, LossWeights, Scaled
from ddpdoctor.facts import strategies
from ddpdoctor.judge import Registry
from ddpdoctor.report.build import build_report
from ddpdoctor.testing import STARTED
from tests.checks.training import SEED, STEP, Made, judge, only, shares, tensor


class ByHand(Made):
    """A program whose collectives carry all gradients in each step."""

    def look(self, step: int, *shares: Any, **more: Any) -> Made:
        return super().look(step, *shares, **{"carried": 1.0, **more})


def by_hand(*groups: list[int]) -> Made:
    made = ByHand(4, wrapped=False)
    made.layout = make_layout([(strategies.BY_HAND.name, "", ranks) for ranks in groups])
    return made


def test_gradients_averaged_over_shards() -> None:
    made = by_hand([0, 1], [2, 3]).look(1, "0,2|1,3").look(2, "0|1|2|3", "0-1|2-3")
    found = only(made)
    assert (found.code, found.severity, found.ranks) == ("COL013", "error", RankSet.span(4))
    assert (found.details["groups"], found.details["replicas"]) == (["0-1", "2-3"], ["0,2", "1,3"])


def test_the_line_that_averages_gradients_is_named_before_the_step() -> None:
    made = by_hand([0, 1], [2, 3]).look(1, "0,2|1,3").look(2, "0|1|2|3", "0-1|2-3")
    line = Frame("train.py", 28, "average", "dist.all_reduce(p.grad, group=group)")
    made.reduced = (line, STEP)
    found = only(made)
    assert "are averaged at train.py:28 over the groups" in found.message
    assert found.where[0].line == 28


def unequal_start(*groups: list[int], values: str) -> Made:
    made = by_hand(*groups)
    tensors = tensor("up.weight", 4, values, model=-1, reduced=False)
    made.look(1, values, "", tensors).look(2, values, "", tensors)
    made.reduced = (Frame("train.py", 28, "average", "dist.all_reduce(p.grad)"), STEP)
    return made


def test_replicas_of_several_groups_that_were_seeded_apart_are_one_finding() -> None:
    found = only(unequal_start([0, 2], [1, 3], values="0|1|2|3").seed("0|1|2|3"))
    assert (found.code, found.ranks, found.confidence) == ("NUM001", RankSet.span(4), "high")
    assert "they are seeded differently at train.py:9, and nothing made" in found.message
    assert [(each.line, each.role) for each in found.where][:2] == [
        (SEED.line, "culprit"),
        (STEP.line, "noticed"),
    ]
    assert found.evidence[1].text == "torch is seeded with d0 on rank 0 and d2 on rank 2"


@pytest.mark.parametrize(
    ("values", "trained"), [("0-1|2-3", False), ("0-3", False), ("0|1|2|3", True), ("0|1|2", False)]
)
def test_seeds_that_do_not_tell_why_replicas_differ(values: str, trained: bool) -> None:
    found = only(unequal_start([0, 1, 2, 3], values="0|1|2|3").seed(values, trained=trained))
    assert (found.code, found.where[0].line) == ("NUM001", STEP.line)


def test_gradients_of_experts_averaged_over_all_ranks() -> None:
    made = unequal_start([0, 1, 2, 3], values="0|1|2|3").seed("0|1|2|3")
    made.all_to_all = True
    found = only(made)
    assert (found.code, found.confidence, found.where[0].line) == ("COL013", "medium", 28)
    assert found.message.startswith(
        "Ranks 0-3 average the gradients of up.weight of Net at train.py:28, of which each began with another one"
    )


def test_models_that_differ_in_all_parameters_are_no_experts() -> None:
    made = unequal_start([0, 1, 2, 3], values="0|1|2|3")
    made.all_to_all = True
    made.looks[:] = [dataclasses.replace(each, differing=4) for each in made.looks]
    assert only(made).code == "NUM001"


def shards_of_replicas(*values: str) -> Made:
    """Four ranks of a mesh of 2 x 2 whose gradients are reduced across the shards of a replica alone."""
    made = Made(4, wrapped=False)
    made.peers = (RankSet([0, 2]), RankSet([1, 3]))
    made.layout = make_layout(
        [(strategies.FSDP2.name, "shard", [0, 1]), (strategies.FSDP2.name, "shard", [2, 3]),
         ("group", "replicate", [0, 2]), ("group", "replicate", [1, 3])]
    )  # fmt: skip
    for step, each in enumerate(values, start=1):
        held, gradients = each.split(" / ")
        made.look(step, held, gradients)
    return made


def test_shards_whose_gradients_are_not_reduced_across_replicas_are_one_finding() -> None:
    found = only(shards_of_replicas("0,2|1,3 / 0|1|2|3", "0|1|2|3 / 0|1|2|3"))
    assert (found.code, found.confidence, found.ranks) == ("NUM001", "high", RankSet.span(4))
    assert found.message.startswith(
        "Ranks 0, 2 hold the same shards of Net, and so do ranks 1, 3, but step them at train.py:"
    )
    assert "nothing reduces the gradients across these replicas" in found.message
    assert any('mesh_dim_names=("replicate", "shard")' in (fix.code or "") for fix in found.fix)


def test_shards_that_part_with_equal_gradients_are_not_said_to_lack_a_reduction() -> None:
    found = only(shards_of_replicas("0,2|1,3 / 0,2|1,3", "0|2|1,3 / 0,2|1,3"))
    assert found.code == "NUM001"
    assert "with equal gradients" in found.message
    assert found.victims == RankSet()
    assert found.ranks == RankSet([0, 2])


def test_gradients_averaged_over_replicas() -> None:
    assert judge(by_hand([0, 2], [1, 3]).look(1, "0,2|1,3").look(2, "0,2|1,3", "0,2|1,3")) == []


def test_gradients_of_a_part_averaged_over_ranks_that_hold_another_one() -> None:
    found = only(by_hand([0, 1, 2, 3]).look(1, "0,2|1,3", "0-1|2-3").look(2, "0|1|2|3", "0-1|2-3"))
    assert (found.code, found.confidence, found.ranks) == ("COL013", "high", RankSet.span(4))
    assert (found.details["groups"], found.details["replicas"]) == (["0-1", "2-3"], ["0,2", "1,3"])
    assert "on no others at step 1, to the last bit" in found.evidence[0].text


@pytest.mark.parametrize("gradients", ["0,2|1,3", "0|1|2|3", "0-3", "0-1|2|3"])
def test_gradients_of_a_part_that_are_equal_elsewhere_show_no_wrong_groups(gradients: str) -> None:
    made = by_hand([0, 1, 2, 3]).look(1, "0,2|1,3", gradients).look(2, "0,2|1,3", gradients)
    assert "COL013" not in {each.code for each in judge(made)}


def test_ranks_that_all_began_apart_have_no_known_replicas() -> None:
    made = by_hand([0, 1], [2, 3]).look(1, "0|1|2|3").look(2, "0|1|2|3", "0-1|2-3")
    assert "COL013" not in {each.code for each in judge(made)}


def wrapped_over_all(born: dict[str, str], batches: str = "0-1|2-3", group: str = "") -> Made:
    made = Made(4, group=group).look(1).look(2).loader()
    made.layout = make_layout([("group", "", ranks) for ranks in ([0, 1], [2, 3])])
    made.born = tuple(Born(1, name, shares(values)) for name, values in born.items())
    for index in range(1, 4):
        made.batch(index, batches)
    return made


SHARDED = {"stem": "0-3", "up": "0,2|1,3", "down": "0,2|1,3"}


def test_wrapper_over_ranks_that_hold_different_shards() -> None:
    found = judge(wrapped_over_all(SHARDED))
    assert [each.code for each in found] == ["COL013", "DAT001"]
    assert (found[0].severity, found[0].ranks) == ("error", RankSet.span(4))
    assert found[0].details["replicas"] == ["0,2", "1,3"]
    assert found[0].details["parameters"] == ["up", "down"]
    assert found[0].where[0].role == "culprit"


@pytest.mark.parametrize(
    ("born", "batches", "group"),
    [
        (dict.fromkeys(SHARDED, "0,2|1,3"), "0-1|2-3", ""),  # a seed of its own on each local rank
        (dict.fromkeys(SHARDED, "0|1|2|3"), "0-1|2-3", ""),
        (dict.fromkeys(SHARDED, "0-3"), "0-1|2-3", ""),
        ({**SHARDED, "down": "0-1|2-3"}, "0-1|2-3", ""),
        ({**SHARDED, "down": "0|1|2|3"}, "0-1|2-3", ""),
        (SHARDED, "0|1|2|3", ""),  # SyncBatchNorm, or experts that exchange tokens
        (SHARDED, "0-1|2|3", ""),
        (SHARDED, "0-1|2-3", "0,2"),  # the ranks that hold the same shard
        ({}, "0-1|2-3", ""),
    ],
)
def test_wrappers_whose_ranks_hold_no_shards(born: dict[str, str], batches: str, group: str) -> None:
    assert "COL013" not in {each.code for each in judge(wrapped_over_all(born, batches, group))}


def test_replicas_that_the_program_averages_and_that_differ() -> None:
    made = by_hand([0, 2], [1, 3]).look(1, "0,2|1|3", "0,2|1,3").look(2, "0,2|1|3", "0,2|1,3")
    found = only(made)
    assert (found.code, found.severity, found.ranks) == ("NUM001", "error", RankSet([1, 3]))


def test_local_steps_beside_an_outer_optimizer_whose_gradients_are_averaged() -> None:
    """Fragments of the model are exchanged now and then, and looked at more often behind that (DiLoCo)."""
    made = by_hand([0, 1, 2, 3])
    made.look(1, "0-3", "0|1|2|3", carried=0.0).look(2, "0|1|2|3", "0|1|2|3", carried=0.0)
    made.look(24, "0|1|2|3", "0|1|2|3", carried=0.3).look(25, "0|1|2|3", "0|1|2|3", carried=1.0)
    assert not [each for each in judge(made) if each.severity != "info"]


def test_averages_that_are_not_put_into_the_gradients() -> None:
    made = by_hand([0, 1, 2, 3]).look(1, "0-3", "0|1|2|3").look(2, "0|1|2|3", "0|1|2|3")
    found = only(made)
    assert (found.code, found.severity, found.confidence) == ("DDP015", "error", "medium")
    assert "what they average is not what the optimizer uses" in found.message
    # Equal gradients that part later are another matter.
    later = (
        by_hand([0, 1, 2, 3]).look(1, "0-3", "0-3").look(2, "0|1|2|3", "0-3").look(3, "0|1|2|3", "0|1|2|3")
    )
    assert only(later).code == "NUM001"


@pytest.mark.parametrize(("model", "expected"), [("-1", []), ("-2", ["NUM001"])])
def test_local_steps_after_the_last_averaged_one(model: str, expected: list[str]) -> None:
    made = by_hand([0, 1, 2, 3]).look(1).look(2).look(3, "0|1|2|3", final=True)
    training = made.training()
    (outer,) = training.optimizers
    outer = dataclasses.replace(outer, alongside=(2,))
    inner = dataclasses.replace(outer, number=2, alongside=(1,), models={model: "__main__.Net"})
    seen = dataclasses.replace(training, optimizers=(outer, inner))
    assert [each.code for each in judge(Evidence(training=(seen,)))] == expected


def unsynced(*steps: int) -> Made:
    made = Made(2, wrapped=False)
    for step in (1, 2, 3):
        made.look(step)
    ranks = RankSet([0, 1])
    made.looks = [
        dataclasses.replace(e, unsynced=ranks if e.step in steps else RankSet()) for e in made.looks
    ]
    made.peers = (RankSet([0]), RankSet([1]))
    return made


def test_steps_with_the_reduction_of_fully_shard_off() -> None:
    found = only(unsynced(2, 3))
    assert (found.code, found.where[0].line, found.details["steps"]) == ("DDP008", STEP.line, [2, 3])
    assert judge(unsynced()) == []


def weighed(*steps: tuple[tuple[float, ...], tuple[float, ...]]) -> Made:
    """Return a job of two ranks: for each step what a token counts for in the losses of either."""
    made = Made(2)
    for number, both in enumerate(steps, 1):
        made.look(number)
        rows = tuple(LossWeights(rank, tuple(10.0 for _ in own), own) for rank, own in enumerate(both))
        made.looks[-1] = dataclasses.replace(made.looks[-1], weights=rows)
    return made


def test_means_over_unequal_numbers_of_tokens() -> None:
    found = only(weighed(((0.1,), (0.3,)), ((0.2,), (0.1,)), ((0.1,), (0.11,)), ((0.5,), (0.1,))))
    assert (found.code, found.severity, found.details["ratio"]) == ("NUM008", "warning", 3.0)
    assert "each rank's own" in found.message


def test_means_of_micro_batches() -> None:
    found = only(weighed(*[((0.1, 0.3), (0.2, 0.05))] * 3))
    assert "each micro-batch's own" in found.message


@pytest.mark.parametrize(
    "steps",
    [
        [((0.1,), (0.1,))] * 6,
        [((0.1,), (0.3,))] * 2,
        [((0.1,), (0.11,))] * 5 + [((0.1,), (0.5,))],
        [((0.1, 0.1), (0.1, 0.1))] * 4,
    ],
    ids=["weighed by tokens", "too few steps", "a smaller last batch", "micro-batches alike"],
)
def test_weights_that_are_no_fault(steps: list[tuple[tuple[float, ...], tuple[float, ...]]]) -> None:
    assert judge(weighed(*steps)) == []


def test_two_nodes_make_one_finding() -> None:
    evidence = unsynced(2, 3).evidence()
    other = dataclasses.replace(evidence.training[0], node=1)
    assert only(dataclasses.replace(evidence, training=(*evidence.training, other))).code == "DDP008"


def parts(*, bias: str = "", norm: str = "0|1", carried: float = 2.0) -> Made:
    """Return a model of which two ranks hold different weights, and a norm that began equal."""
    made = Made(2, wrapped=False)
    for step in (1, 2, 4):
        later = step > 1
        rows = [
            tensor("layer.weight", 2, "0|1", "0|1", model=-1, reduced=False),
            tensor("layer.bias", 2, bias if later else "", "0|1", model=-1, reduced=False),
            tensor("norm.weight", 2, norm if later else "", norm, model=-1, reduced=False),
        ]
        told = [each for each in rows if len(each.values) > 1 or len(each.gradients) > 1]
        made.look(step, "0|1", "0|1", *told, carried=carried)
    return made


def test_shared_parameters_of_a_sharded_model_part() -> None:
    found = only(parts(bias="0|1"))
    assert (found.code, found.severity, found.confidence) == ("NUM001", "warning", "low")
    assert [row["name"] for row in found.details["parameters"]] == ["norm.weight"]
    assert "norm.weight of Net began equal" in found.message


@pytest.mark.parametrize(
    "made",
    [parts(bias="0|1", norm=""), parts(carried=0.01)],
    ids=["a bias is sharded with its layer", "members of an ensemble exchange nothing"],
)
def test_parts_that_are_no_fault(made: Made) -> None:
    assert {each.severity for each in judge(made)} <= {"info"}


def look_undecided(made: Made) -> str | None:
    """Return what replicas could not be told of, where the verdict hangs on it."""
    registry = Registry()
    ddpdoctor_checks.register(registry)
    report = build_report(made.evidence(), registry=registry, started_at=STARTED, duration_s=1.0)
    row = next(each for each in report.checks if each.id == "training.replicas")
    return row.reason if row.status == "unknown" and row.required else None


def test_copies_that_may_be_one_model_are_not_called_healthy() -> None:
    made = Made(2, wrapped=False).look(1, "", "0|1").look(2, "0|1", "0|1")
    assert "whether they are meant to train one model" in str(look_undecided(made))


def test_copies_that_are_averaged_later_are_decided() -> None:
    made = Made(2, wrapped=False).look(1, "", "0|1").look(2, "0|1", "0|1").look(5, "", "0|1")
    assert look_undecided(made) is None


def test_models_that_begin_apart_are_decided() -> None:
    assert look_undecided(Made(2, wrapped=False).look(1, "0|1", "0|1").look(2, "0|1", "0|1")) is None


def scaled(*steps: tuple[float, ...], layout: str = strategies.FSDP2.name, name: str = "") -> Made:
    """Return a job whose ranks scale gradients before the step: for each step the factor of each rank."""
    made = Made(len(steps[0]), wrapped=False)
    made.layout = make_layout([(layout, name, list(range(made.world)))])
    for number, factors in enumerate(steps, 1):
        made.look(number)
        rows = tuple(Scaled(rank, factor) for rank, factor in enumerate(factors))
        made.looks[-1] = dataclasses.replace(made.looks[-1], scaled=rows)
    return made


def test_gradients_clipped_by_the_norm_of_each_shard() -> None:
    found = only(scaled((1.0, 1.0, 1.0), (0.3, 0.6, 1.0)))
    assert (found.code, found.severity, found.confidence) == ("NUM007", "error", "high")
    assert (found.ranks, found.details["steps"]) == (RankSet.span(3), [2])
    assert "0.3 on rank 0, 0.6 on rank 1 and 1 on rank 2" in found.message


def test_stages_that_a_mesh_names_are_clipped_apart() -> None:
    found = only(scaled((0.3, 0.6), layout="group", name="pp"))
    assert (found.code, found.confidence) == ("NUM007", "medium")


def test_parts_of_sums_that_the_program_shares_out_itself_are_clipped_apart() -> None:
    made = scaled((0.3, 0.6), (0.5, 0.5), layout="group")
    made.looks[:] = [
        dataclasses.replace(
            look, scaled=tuple(dataclasses.replace(each, group=RankSet([0, 1])) for each in look.scaled)
        )
        for look in made.looks
    ]
    found = only(made)
    assert (found.code, found.confidence, found.ranks) == ("NUM007", "high", RankSet([0, 1]))


@pytest.mark.parametrize(
    "made",
    [
        scaled((0.5, 0.5), (0.25, 0.251)),
        scaled((0.5, 1.0), layout="group", name="ep"),
        scaled((0.5, 1.0), layout="group"),
        scaled((0.5, 1.0), layout=strategies.DDP.name),
    ],
    ids=["one norm", "experts", "a group of which nothing is known", "replicas"],
)
def test_factors_that_are_no_fault(made: Made) -> None:
    assert "NUM007" not in {each.code for each in judge(made)}


@pytest.mark.parametrize(("factors", "status"), [((1.0, 1.0), "skipped"), ((0.5, 0.5), "pass")])
def test_a_clip_that_was_never_reached_is_no_proof(factors: tuple[float, ...], status: str) -> None:
    registry = Registry()
    ddpdoctor_checks.register(registry)
    evidence = scaled(factors, factors).evidence()
    report = build_report(evidence, registry=registry, started_at=STARTED, duration_s=1.0)
    assert next(each.status for each in report.checks if each.id == "training.shard_norms") == status
