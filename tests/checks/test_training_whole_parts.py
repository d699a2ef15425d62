"""Parameters that ranks hold whole beside shards of their own, and do not keep equal."""

from __future__ import annotations

import pytest

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.layout import make_layout
from ddpdoctor.evidence.training.fingerprints import TensorLook
from ddpdoctor.facts import strategies
from tests.checks.training import SEED, STEP, Made, judge, only, tensor


def fully_sharded(*, known: bool = True) -> Made:
    made = Made(2, wrapped=False)
    made.peers = (RankSet([0]), RankSet([1]))
    made.layout = make_layout([(strategies.FSDP2.name, "", [0, 1])] if known else [])
    return made


def head(values: str = "", gradients: str = "0|1") -> TensorLook:
    return tensor("head.weight", 2, values, gradients, model=-1, reduced=False)


def test_a_parameter_that_fully_shard_does_not_have_is_trained_apart() -> None:
    made = fully_sharded().look(1, "", "", head()).look(2, "", "", head("0|1"))
    found = only(made)
    assert (found.code, found.severity, found.ranks) == ("DDP006", "error", RankSet([0, 1]))
    assert found.where[0].line == STEP.line
    assert found.message == (
        "head.weight is no part of what FSDP shards on ranks 0-1: each rank holds it whole and steps with gradients of "
        "its own at train.py:30. The values differ from step 2 on."
    )


@pytest.mark.parametrize("count", [1, 2])
def test_the_line_that_puts_a_layer_into_a_sharded_model(count: int) -> None:
    made = fully_sharded().look(1, "", "", head()).look(2, "", "", head("0|1"))
    made.replaced = tuple(Frame("train.py", line, "", "model.head = make()") for line in (17, 18)[:count])
    found = only(made)
    assert found.where[0].line == (17 if count == 1 else STEP.line)
    assert ("The program changes the model at train.py:17." in found.message) is (count == 1)


@pytest.mark.parametrize(
    ("first", "second"),
    [(("", "0-1"), ("", "0-1")), (("", "0|1"), ("", "0|1")), (("0|1", "0|1"), ("0|1", "0|1"))],
    ids=["reduced", "equal all the same", "an expert of each rank"],
)
def test_parameters_that_are_kept_equal_or_never_were(
    first: tuple[str, str], second: tuple[str, str]
) -> None:
    made = fully_sharded().look(1, "", "", head(*first)).look(2, "", "", head(*second))
    assert "DDP006" not in {each.code for each in judge(made)}


def embedding(values: str, gradients: str, norm: float = 1.0) -> TensorLook:
    return tensor("embed.weight", 2, values, gradients, model=-1, reduced=False, norms=(norm, norm))


def shard() -> TensorLook:
    return tensor("head.weight", 2, "0|1", "0|1", model=-1, reduced=False)


def unequal(gradients: str = "0-1", norm: float = 1.0, later: str = "0|1") -> Made:
    made = Made(2, wrapped=False)
    made.look(1, "0|1", "0|1", embedding("0|1", gradients, norm), shard())
    return made.look(2, "0|1", "0|1", embedding(later, gradients, norm), shard())


def test_replicas_of_a_part_that_were_never_equal() -> None:
    found = next(each for each in judge(unequal()) if each.code == "NUM001")
    assert (found.code, found.severity, found.ranks) == ("NUM001", "warning", RankSet([0, 1]))
    assert found.message == (
        "Ranks 0-1 average the gradient of embed.weight before the step at train.py:30, and started with different "
        "values of it. They were never equal, and stay different."
    )


def test_replicas_of_a_part_that_were_seeded_apart() -> None:
    found = next(each for each in judge(unequal().seed("0|1")) if each.code == "NUM001")
    assert "different values of it: they are seeded differently at train.py:9." in found.message
    assert [(each.line, each.role) for each in found.where] == [
        (SEED.line, "culprit"),
        (STEP.line, "noticed"),
    ]


@pytest.mark.parametrize(
    "made",
    [unequal("0|1"), unequal(norm=0.0), unequal(later="0-1")],
    ids=["gradients of their own", "no gradient", "made equal later"],
)
def test_parts_that_are_meant_to_differ(made: Made) -> None:
    assert "NUM001" not in {each.code for each in judge(made)}


def tensor_parallel(first: tuple[str, str], second: tuple[str, str], *, name: str = "tp") -> Made:
    made = Made(2, wrapped=False)
    made.peers = (RankSet([0]), RankSet([1]))
    made.layout = make_layout([(strategies.DTENSOR.name, name, [0, 1])])
    return made.look(1, "", "", head(*first)).look(2, "", "", head(*second))


def test_a_replicated_parameter_of_tensor_parallel_ranks_is_stepped_apart() -> None:
    found = only(tensor_parallel(("", "0|1"), ("0|1", "0|1")))
    assert (found.code, found.severity, found.confidence) == ("NUM001", "error", "high")
    assert (found.ranks, found.where[0].line) == (RankSet([0, 1]), STEP.line)
    assert found.message.startswith("Ranks 0-1 hold head.weight whole, beside shards of the other parameters")
    assert found.message.endswith("The values differ from step 2 on.")


def test_tensor_parallel_ranks_that_are_given_different_batches_are_that_first() -> None:
    made = tensor_parallel(("", "0|1"), ("0|1", "0|1")).batch(1, "0|1").batch(2, "0|1")
    assert {each.code for each in judge(made)} == {"DAT009"}


@pytest.mark.parametrize(
    "made",
    [
        tensor_parallel(("", "0-1"), ("", "0-1")),
        tensor_parallel(("", "0|1"), ("", "0|1")),
        tensor_parallel(("0|1", "0|1"), ("0|1", "0|1")),
        tensor_parallel(("", "0|1"), ("0|1", "0|1"), name="ep"),
    ],
    ids=["reduced", "equal all the same", "a part of its own", "experts"],
)
def test_parameters_that_tensor_parallel_ranks_may_hold(made: Made) -> None:
    assert "NUM001" not in {each.code for each in judge(made)}
