"""Replicas that part by their optimizers: states, settings and learning rates that differ over ranks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.training.fingerprints import (
    OptimizerSetup,
    StateLook,
    StepLook,
    Training,
    WrapperSetup,
)
from ddpdoctor.evidence.training.loads import LateLoad
from ddpdoctor.evidence.training.shares import Share
from ddpdoctor.watch.inject.ddpdoctor_watch.core import journal
from ddpdoctor.watch.readers.rank_steps import RankSteps
from ddpdoctor.watch.readers.records import Shortener
from ddpdoctor.watch.readers.steps import fold_steps
from ddpdoctor_checks.training.replicas.divergence import judge_replicas
from tests.checks.training import Made, judge, only, shares


def state(who: str, parameter: str = "fc.weight", item: str = "exp_avg", model: int = 1) -> StateLook:
    return StateLook(item, shares(who, (1.0, 2.0)), parameter, model)


def test_a_state_of_the_optimizer_that_differs_before_parameters_do() -> None:
    other = state("0-2", "", "step", 0)
    made = (
        Made(3).look(1).look(2, states=(other, state("0,2|1"))).look(4, "0,2|1", "", states=(state("0,2|1"),))
    )
    found = only(made)
    assert (found.code, found.severity, found.ranks) == ("NUM006", "warning", RankSet([1]))
    assert "before step 2" in found.message
    assert "exp_avg of fc.weight, whose norm is 1 on ranks 0, 2 and 2 on rank 1" in found.message
    assert found.details["state"] == "exp_avg"


def test_a_setting_of_the_optimizer_that_differs() -> None:
    decay = StateLook(
        "weight_decay", (Share("0.1", RankSet([0, 1])), Share("0.0", RankSet([2]))), setting=True
    )
    after = StateLook("exp_avg", shares("0,1|2"), "fc.weight", 1)
    made = Made(3).look(1, states=(decay,)).look(2, "0,1|2", "", states=(decay, after))
    found = only(made)
    assert (found.code, found.ranks) == ("NUM006", RankSet([2]))
    assert "setting weight_decay" in found.message
    assert "0.1 on ranks 0-1 and 0.0 on rank 2" in found.message


def test_a_state_that_one_rank_has_is_told_as_that() -> None:
    loaded = StateLook("exp_avg", (Share("a", RankSet([0]), 1.0), Share("", RankSet([1]))), "fc.weight", 1)
    found = only(Made(2).look(1, states=(loaded,)).look(2, "0|1", ""))
    assert "which rank 0 has and rank 1 not" in found.message


@pytest.mark.parametrize(
    "made",
    [
        Made(2).look(1, states=(state("0|1"),)).look(2, states=(state("0|1"),)),
        Made(2).look(1, states=(state("0|1"),)).look(2, states=(state("0-1"),)),
        Made(2).look(1, states=(state("0|1"),)).look(2, "0|1", "").look(4),
    ],
    ids=["parameters stay equal", "equal again", "parameters equal again"],
)
def test_states_that_do_no_harm_are_no_fault(made: Made) -> None:
    assert judge(made) == []


def test_states_that_are_no_cause() -> None:
    after = Made(2).look(1).look(2, "0|1", "", states=(state("0|1"),))
    assert only(after).code == "NUM001"  # the state follows the parameters
    pieces = Made(2).look(1, states=(state("0|1"),)).look(2, "0|1", "")
    pieces.uniform = False
    assert only(pieces).code == "NUM001"  # each rank has the state of other parameters
    others = Made(2).look(1, states=(state("0|1", model=2),)).look(2, "0|1", "")
    assert only(others).code == "NUM001"


def test_parts_of_a_state_are_folded_to_the_first_parameter_that_differs(tmp_path: Path) -> None:
    rows = [[name, "parameter", 1, [2], "float32", True, 1, None] for name in ("a", "b")]
    ranks = []
    for rank in range(3):
        each = [[["1", 1.0], ["2" if rank == 1 else "3", 2.0]], [["7", 7.0], ["7", 7.0]]]
        step: Any = {"event": "step", "optimizer": 1, "table": 1, "step": 1, "count": 2, "wrappers": [], "values": "v",
                "states": [["exp_avg", f"e{rank == 1}"], ["step", "7"]], "each_state": each,
                "settings": [["betas", "(0.9, 0.999)"]]}  # fmt: skip
        if rank == 2:
            step.update(states=[], each_state=[])
        path = tmp_path / f"{rank}.jsonl"
        path.write_text(journal.encode(step) + "\n")
        ranks.append(RankSteps(rank, path))
        ranks[-1].take({"event": "tensors", "optimizer": 1, "table": 1, "rows": rows})
        step["whole"] = True
        ranks[-1].take(step)
    (look,) = fold_steps(1, ranks, Shortener(tmp_path), alone=True)
    setting, first, second = look.states
    assert (setting.item, setting.setting) == ("betas", True)
    assert [share.digest for share in setting.values] == ["(0.9, 0.999)"]
    assert (first.item, first.parameter, first.model) == ("exp_avg", "a", 1)
    assert [(share.digest, share.ranks) for share in first.values] == [
        ("1", RankSet([0, 1])),
        ("", RankSet([2])),
    ]
    assert (second.item, len(second.values)) == ("step", 2)


LINE = (Frame("train.py", 31, "resume", "load_state_dict(state)"),)


def with_loads(made: Made, *loads: LateLoad) -> Evidence:
    evidence = made.evidence()
    return dataclasses.replace(
        evidence, training=(dataclasses.replace(evidence.training[0], late_loads=loads),)
    )


def test_a_state_that_one_rank_loaded_is_told_with_the_line_of_the_load() -> None:
    loaded = StateLook("exp_avg", (Share("a", RankSet([0]), 1.0), Share("", RankSet([1]))), "fc.weight", 1)
    made = Made(2).look(1, states=(loaded,)).look(2, "0|1", "")
    kind = made.evidence().training[0].optimizers[0].kind
    found = only(with_loads(made, LateLoad(RankSet([0]), 0, kind, 1, frames=LINE)))
    assert found.code == "NUM006"
    assert (
        f"Rank 0 loaded a state dict into {kind.rpartition('.')[2]} at train.py:31; rank 1 did not."
        in found.message
    )
    assert (found.where[0].line, found.where[0].ranks) == (31, RankSet([0]))
    for other in (LateLoad(RankSet([0, 1]), 0, kind, 1, frames=LINE), LateLoad(RankSet([0]), 0, "other", 1)):
        assert "loaded" not in only(with_loads(made, other)).message


APART = (Share("a", RankSet([0])), Share("b", RankSet([1])))


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (
            LateLoad(RankSet([0]), 1, "Net", 1, frames=LINE),
            "Rank 0 loaded a state dict into Net at train.py:31, after",
        ),
        (
            LateLoad(RankSet([0, 1]), 1, "Net", 2, 2, APART, LINE),
            "Ranks 0-1 loaded different values into Net at",
        ),
        (LateLoad(RankSet([0, 1]), 1, "Net", 2, 3, APART, LINE), "something else changes them"),
        (LateLoad(RankSet([0, 1]), 1, "Net", 2, frames=LINE), "something else changes them"),
        (LateLoad(RankSet([0]), 2, "Net", 2, frames=LINE), "something else changes them"),
        (LateLoad(RankSet([0]), 0, "Net", 2, frames=LINE), "something else changes them"),
    ],
    ids=["on one", "other values", "after they differed", "the same on all", "another model", "an optimizer"],
)
def test_replicas_that_part_by_a_load_are_told_with_its_line(load: LateLoad, said: str) -> None:
    found = only(with_loads(Made(2).look(1).look(2).look(4, "0|1", ""), load))
    assert found.code == "NUM001"
    assert said in found.message
    assert (found.where[0].line == 31) == ("loaded" in said)


def test_a_load_explains_no_gradients_that_differ() -> None:
    load = LateLoad(RankSet([0]), 1, "Net", 1, frames=LINE)
    found = only(with_loads(Made(2).look(1).look(2, "", "0|1").look(4, "0|1", "0|1"), load))
    assert "loaded" not in found.message


def test_states_are_compared_over_nodes() -> None:
    def node(number: int) -> Training:
        ranks, digest = RankSet([number]), f"d{number}"
        looks = tuple(
            StepLook(1, step, values=(Share(f"v{number * (step > 1)}", ranks),), gradients=(Share("g", ranks),),
                     states=(StateLook("momentum_buffer", (Share(digest, ranks),)),))
            for step in (1, 2)
        )  # fmt: skip
        wrapper = WrapperSetup(1, "Net", RankSet([0, 1]))
        setup = OptimizerSetup(1, "torch.optim.SGD", ranks, 1, models={"1": "Net"}, wrappers=(wrapper,))
        return Training(number, ranks, (setup,), looks)

    (divergence,) = judge_replicas(Evidence(training=(node(0), node(1))))
    assert divergence.code == "NUM006"
    assert divergence.state is not None
    assert divergence.state.item == "momentum_buffer"


@pytest.mark.parametrize(("lowered", "line"), [("0|1", 61), ("0-1", None), ("", None)])
def test_the_scheduler_that_lowers_rates_at_other_steps_is_the_place(lowered: str, line: int | None) -> None:
    made = Made(2).look(1).look(2, "", "", rates="0|1").look(4, "0|1", "", rates="0|1")
    made.lowered = lowered
    found = only(made)
    assert found.code == "NUM006"
    assert ("ReduceLROnPlateau at train.py:61 lowers them" in found.message) == (line is not None)
    assert (found.where[0].line == 61) == (line is not None)


def test_learning_rates_that_differ() -> None:
    made = Made(2).look(1).look(2, "", "", rates="0|1").look(4, "0|1", "", rates="0|1")
    found = only(made)
    assert (found.code, found.severity) == ("NUM006", "warning")
    assert only(Made(2).look(1, "0|1", rates="0|1").look(2, "0|1", rates="0|1")).code == "NUM001"


def test_learning_rates_that_differed_between_two_looks() -> None:
    made = Made(2).look(1).look(2).look(64)
    found = only(made.look(121, "0|1", final=True, rated="0|1"))
    assert (found.code, found.severity) == ("NUM006", "warning")
    assert "have differed across ranks: those of all steps add up to" in found.message


def test_sums_of_learning_rates_over_other_numbers_of_steps_tell_nothing() -> None:
    made = Made(2).look(1).look(2).look(64)
    made.ended = "0|1"
    found = only(made.look(121, "0|1", final=True, rated="0|1"))
    assert found.code == "NUM001"
