"""What is said of FSDP2, tensor and pipeline parallelism and distributed checkpoints that `check` has tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import STAGES, STRATEGIES, Evidence, Experiment, RankMessage, RankSet
from ddpdoctor.testing import assert_finds, assert_passes, assert_status, make_world
from ddpdoctor_checks import ddp
from tests.checks.test_ddp import codes_in_order


def with_strategy(name: str, **changes: Any) -> Evidence:
    world = make_world(1, 4)
    passed = {each: Experiment(each, RankSet.span(4)) for each in STRATEGIES}
    rows = {**passed, name: replace(passed[name], **changes)}
    return replace(world, launch=replace(world.launch, stages=STAGES), strategies=tuple(rows.values()))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fsdp2", "FSDP2 (fully_shard) gives a wrong result"),
        ("tp", "Tensor parallelism gives a wrong result"),
        ("pp", "Pipeline parallelism gives a wrong result"),
        ("dcp", "A distributed checkpoint comes back different"),
    ],
)
def test_a_strategy_that_is_wrong_names_ranks_and_difference(name: str, words: str) -> None:
    said = (
        RankMessage(RankSet([3]), "the output is not that of one process: expected 3 at element 0, got 2"),
    )
    world = with_strategy(name, passed=RankSet.span(3), failures=said, largest_difference=1.0)
    found = assert_finds(
        ddp.find_strategy_wrong, world, code="DDP021", id=f"ddp.strategy.{name}", severity="error"
    )
    assert f"{words} on rank 3 (largest difference 1): the output" in found.message
    assert str(found.ranks) == "3"
    assert (found.fix[0].command or "").endswith(f"--strategy {name} --backend gloo")
    assert codes_in_order(world) == [("DDP021", "cause")]


def test_a_strategy_that_raises_is_told_once() -> None:
    said = (RankMessage(RankSet([1]), "RuntimeError: reduce_scatter is not supported"),)
    world = with_strategy("fsdp2", passed=RankSet(), failures=said)
    found = assert_finds(ddp.find_strategy_raised, world, code="BKD002")
    assert (
        "The strategy fsdp2 with gloo raised on rank 1: RuntimeError: reduce_scatter is not" in found.message
    )
    assert (found.fix[0].command or "").endswith("ddpdoctor check --only strategies -v")
    assert_status(ddp.find_strategy_wrong, world, "unknown", id="ddp.strategy.fsdp2")


def test_strategies_that_nobody_asked_for_do_not_apply() -> None:
    why = assert_status(ddp.find_strategy_raised, make_world(1, 4), "skipped")
    assert why == "no --strategy was given"
    world = with_strategy("tp")
    assert_passes(ddp.find_strategy_wrong, world)
    some = replace(world, launch=replace(world.launch, strategies=("tp",)))
    why = assert_status(ddp.find_strategy_wrong, some, "skipped", id="ddp.strategy.pp")
    assert why == "--strategy does not name pp"
    skipped = with_strategy("pp", passed=RankSet(), skipped="PipelineStage is not available in torch 2.3")
    why = assert_status(ddp.find_strategy_wrong, skipped, "skipped", id="ddp.strategy.pp")
    assert why == "PipelineStage is not available in torch 2.3"
    cut = replace(world, strategies=())
    assert_status(ddp.find_strategy_wrong, cut, "unknown", id="ddp.strategy.tp")
