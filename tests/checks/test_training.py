"""Replicas that part: the cause, the ranks, the line; and what is no fault at all."""

from __future__ import annotations

import dataclasses
import time

import pytest

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.training.fingerprints import OptimizerSetup, StepLook
from ddpdoctor.evidence.training.numerics import Numerics, ScaleLook
from ddpdoctor.evidence.training.shares import Share
from ddpdoctor_checks.training.replicas.models import list_replicas
from tests.checks.training import CALL, STEP, WRAP, Made, judge, only, tensor


def test_equal_replicas_are_no_finding() -> None:
    assert judge(Made(4).look(1).look(2).look(4).look(7, final=True)) == []


def test_training_around_the_wrapper_is_named_by_the_call() -> None:
    made = Made(2)
    made.look(1, "", "0|1", synced=0, last=None, bypassed=True).look(
        2, "0|1", "0|1", synced=0, last=None, bypassed=True
    )
    found = only(made)
    assert (found.code, found.ranks, found.severity) == ("DDP005", RankSet([0, 1]), "error")
    assert (found.where[0].role, found.where[0].line) == ("culprit", CALL.line)
    assert "from step 2 on, fc.weight first" in found.message
    assert found.confidence == "high"


def test_wrapper_without_a_forward_is_named_by_the_step_where_modules_were_not_looked_at() -> None:
    made = Made(2).look(1, "", "0|1", synced=0, last=None).look(2, "0|1", "0|1", synced=0, last=None)
    found = only(made)
    assert (found.code, found.where[0].line) == ("DDP005", STEP.line)


def test_step_after_a_forward_under_no_sync() -> None:
    made = (
        Made(2)
        .look(1)
        .look(2, "", "0|1", synced=1, alone=1, last=False)
        .look(4, "0|1", "0|1", alone=2, last=False)
    )
    assert only(made).code == "DDP008"


def test_no_forward_but_those_under_no_sync_is_no_way_around_the_wrapper() -> None:
    made = Made(2).look(1, "", "0|1", synced=0, alone=2, last=False).look(2, "0|1", final=True)
    assert only(made).code == "DDP008"


def test_gradients_that_differ_at_the_last_look_are_told_with_less_confidence() -> None:
    found = only(Made(2).look(1, "", "0|1", synced=0, last=None))
    assert (found.code, found.confidence) == ("DDP005", "medium")
    assert "Its gradients differ at step 1." in found.message


def test_correct_accumulation_is_no_finding() -> None:
    assert (
        judge(Made(2).look(1, synced=1, alone=3).look(2, synced=1, alone=3).look(4, synced=2, alone=6)) == []
    )


def test_unfrozen_and_new_parameters_are_named_with_the_wrap() -> None:
    made = Made(2)
    made.unfrozen = ("head.bias",)
    head = tensor("head.bias", 2, "0|1", "0|1", reduced=False)
    found = only(made.look(1).look(2).look(4, "0|1", "0|1", head))
    assert found.code == "DDP006"
    assert "head.bias" in found.message
    assert "required no gradient" in found.message
    assert [(place.role, place.line) for place in found.where] == [
        ("culprit", WRAP.line),
        ("noticed", STEP.line),
    ]


@pytest.mark.parametrize("unfrozen", [False, True])
def test_the_line_that_replaces_a_layer_is_named_before_the_wrap(unfrozen: bool) -> None:
    made = Made(2)
    made.replaced = (Frame("train.py", 17, "", "model.module.head = make()"),)
    made.unfrozen = ("head.bias",) if unfrozen else ()
    head = tensor("head.bias", 2, "0|1", "0|1", reduced=False)
    found = only(made.look(1).look(2).look(4, "0|1", "0|1", head))
    assert found.where[0].line == (WRAP.line if unfrozen else 17)
    assert ("which the program replaces at train.py:17, did not exist" in found.message) is not unfrozen


def test_new_parameters_that_each_rank_has_drawn_are_named_with_the_wrap() -> None:
    drawn = tensor("enc.a", 2, "0|1", "0|1", reduced=False)
    zero = tensor("enc.b", 2, "", "0|1", reduced=False)
    found = only(Made(2).look(1, "0|1", "0|1", drawn, zero).look(2, "0|1", "0|1", drawn, zero))
    assert found.code == "DDP006"
    assert "enc.a and enc.b" in found.message
    old = tensor("fc.weight", 2, "0|1", "")
    assert only(Made(2).look(1, "0|1", "0|1", drawn, old)).code == "NUM001"


@pytest.mark.parametrize(
    ("synced", "alone", "gradients", "code"),
    [(1, 6, "", "DDP008"), (2, 6, "", "NUM001"), (1, 0, "", "NUM001"), (1, 6, "0|1", "NUM001")],
)
def test_a_step_between_two_looks_that_no_forward_reduced(
    synced: int, alone: int, gradients: str, code: str
) -> None:
    made = Made(2).look(1).look(2).look(4, "0|1", gradients, synced=synced, alone=alone)
    assert only(made).code == code
    assert only(Made(2).look(1, "0|1", synced=0, alone=alone)).code == "NUM001"  # before any step


def test_parameters_that_the_wrapper_ignores_on_purpose_may_differ() -> None:
    made = Made(2).look(1, "", "0|1", tensor("adapter", 2, "", "0|1", ignored=True))
    assert judge(made.look(2, "0|1", "0|1", tensor("adapter", 2, "0|1", "0|1", ignored=True))) == []
    other = tensor("fc.weight", 2, "0|1", "")
    found = only(made.look(4, "0|1", "0|1", tensor("adapter", 2, "0|1", "0|1", ignored=True), other))
    assert found.code == "NUM001"
    assert "fc.weight" in found.message


def test_optimizers_that_have_other_parameters_on_each_rank_are_compared_by_name() -> None:
    made = Made(2)
    made.uniform = False
    same = tensor("fc.weight", 2)
    assert judge(made.look(1, "0|1", "0|1", same).look(2, "0|1", "0|1", same)) == []


def test_buffers_are_no_parameters_where_an_optimizer_has_two_models() -> None:
    statistics = tensor("bn.running_mean", 2, "0|1", kind="other")
    made = Made(2).look(1).look(2, "0|1", "", statistics).look(4, "0|1", "", statistics)
    made.models = {"1": "Net", "2": "Head"}
    assert judge(made) == []


def test_unused_on_all_ranks_and_on_some() -> None:
    used = tensor("fc.weight", 4, "", "0|1|2|3")
    everywhere = tensor("aux.weight", 4, missing="0-3", idle="0-3")
    found = only(Made(4).look(1, "", "0|1|2|3", used, everywhere).look(2, "0|1|2|3", final=True))
    assert (found.code, found.ranks) == ("DDP001", RankSet.span(4))
    assert "aux.weight" in found.message
    assert "its forward never ran" in found.message
    somewhere = tensor("aux.weight", 4, "", "0,2-3", missing="1")
    found = only(Made(4).look(1, "", "0|1|2|3", used, somewhere).look(2, "0|1|2|3", final=True))
    assert (found.code, found.ranks, found.victims) == ("DDP002", RankSet([1]), RankSet([0, 2, 3]))


def test_a_gradient_that_only_some_ranks_have_is_enough() -> None:
    somewhere = tensor("aux.weight", 4, missing="1", gradients="0,2-3")
    found = only(Made(4).look(1, "", "", somewhere).look(2, "0,2-3|1", final=True))
    assert (found.code, found.ranks) == ("DDP002", RankSet([1]))


def test_unused_parameters_that_the_wrapper_looks_for_are_no_cause() -> None:
    made = Made(2)
    made.find_unused = True
    lacking = tensor("aux.weight", 2, missing="0-1")
    assert judge(made.look(1, "", "", lacking).look(2)) == []


def unwrapped(
    start: str = "", *, carried: float = 0.0, exchanged: float = 0.0, rates: str = "", equal: int = 0
) -> Made:
    """Return two ranks whose models part; some of the four parameters have equal gradients."""
    made = Made(2, wrapped=False)
    rows = [
        tensor(f"layer{n}.weight", 2, start, "" if n < equal else "0|1", model=-1, reduced=False)
        for n in range(4)
    ]
    made.look(1, start, "0|1", *rows[equal:], rates=rates)
    made.look(2, "0|1", "0|1", *rows[equal:], carried=carried, exchanged=exchanged)
    return made.look(3, "0|1", final=True)


def sharded(made: Made) -> Made:
    return made.loader().epoch(1, {0: "a", 1: "b"})


def test_model_that_nothing_wraps() -> None:
    found = only(sharded(unwrapped()))
    assert (found.code, found.severity, found.confidence) == ("DDP015", "error", "high")
    assert found.where[0].line == STEP.line
    found = only(sharded(unwrapped("0|1")))
    assert (found.code, found.severity, found.confidence) == ("DDP015", "error", "medium")


def test_sampler_of_what_is_only_evaluated_tells_nothing_of_the_training() -> None:
    made = unwrapped().loader().epoch(1, {0: "a", 1: "b"}, steps=0)
    assert only(made).severity == "info"


@pytest.mark.parametrize(
    ("steps", "start", "expected"),
    [(40, "0|1", "info"), (48, "0|1", "error"), (96, "0|1", "error"), (40, "", "error")],
)
def test_probe_that_each_rank_fits_itself_is_not_the_model_of_the_sampler(
    steps: int, start: str, expected: str
) -> None:
    """96 steps of a wrapped model: 40 of another one are not of the same loop, 48 may be, each second time."""

    def count(made: Made, number: int, steps: int) -> tuple[OptimizerSetup, tuple[StepLook, ...]]:
        setup = dataclasses.replace(
            made.training().optimizers[0], number=number, steps=(Share(str(steps), RankSet([0, 1])),)
        )
        return setup, tuple(dataclasses.replace(look, optimizer=number) for look in made.looks)

    probed, looks = count(unwrapped(start), 2, steps)
    trained, others = count(Made(2).look(1).look(2).look(96), 1, 96)
    training = sharded(unwrapped()).training()
    seen = dataclasses.replace(training, optimizers=(trained, probed), steps=(*others, *looks))
    found = only(Evidence(training=(seen,)))
    assert (found.code, found.severity) == ("DDP015", expected)


def test_parameters_that_were_not_known_by_name_at_first_are_those_of_the_only_model() -> None:
    made = Made(2, wrapped=False)
    first = tensor("parameter 0 of the optimizer", 2, "0|1", "0|1", model=0, reduced=False)
    made.look(1, "0|1", "0|1", first).look(2, "0|1", "0|1")
    assert "They differ from the start" in only(sharded(made)).message


def test_steps_that_a_rank_skips_by_inf_in_its_own_gradients_are_the_scalers() -> None:
    """Gradients that are averaged after `unscale_` has looked at those of the rank alone."""
    training = unwrapped(carried=1.0).batch(1, "0|1").batch(2, "0|1").training()
    rows = ((0, 1, 8.0), (1, 1, 8.0), (0, 2, 8.0), (1, 2, 4.0))
    scales = tuple(ScaleLook(1, rank, step, value, frames=(STEP,)) for rank, step, value in rows)
    seen = dataclasses.replace(training, numerics=Numerics(scales=scales))
    found, follows = judge(Evidence(training=(seen,)))
    assert (found.code, follows.code, follows.role) == ("NUM004", "DDP015", "consequence")
    assert "its own gradients" in found.message
    assert "before scaler.unscale_" in found.fix[0].text


def test_rounds_of_local_training_are_averaged_in_between() -> None:
    made = sharded(unwrapped())
    training = made.training()
    again = dataclasses.replace(training.optimizers[0], number=2)
    begin = dataclasses.replace(Made(2, wrapped=False).look(1).looks[0], optimizer=2)
    parted = dataclasses.replace(made.looks[1], optimizer=2, step=1)
    in_turn = dataclasses.replace(again, alongside=(1,))
    for second, look, expected in (
        (again, begin, "info"),
        (again, parted, "error"),
        (in_turn, begin, "error"),
    ):
        seen = dataclasses.replace(
            training, optimizers=(*training.optimizers, second), steps=(*training.steps, look)
        )
        assert judge(Evidence(training=(seen,)))[0].severity == expected


def test_averaging_that_does_nothing() -> None:
    found = only(unwrapped(carried=1.0).batch(1, "0|1").batch(2, "0|1"))
    assert (found.code, found.severity, found.confidence) == ("DDP015", "error", "medium")


def test_unwrapped_models_may_be_meant_to_be_several() -> None:
    folds = unwrapped(carried=0.01).batch(1, "0|1").batch(2, "0|1")
    ensemble = unwrapped("0|1")
    search = unwrapped(carried=1.0, rates="0|1").batch(1, "0|1")
    experts = sharded(unwrapped("0|1", carried=1.0, equal=2))
    gossip = sharded(unwrapped(exchanged=2.0))
    for made in (folds, ensemble, search, experts, gossip):
        found = only(made)
        assert (found.code, found.severity, found.confidence) == ("DDP015", "info", "low")


def test_averaging_that_is_never_due() -> None:
    due = Frame("outer.py", 12, "", "step % 20")
    once = unwrapped(carried=0.01)
    once.looks[1:1] = [dataclasses.replace(once.looks[1], step=16, carried=1.0)]
    for made, expected in (
        (unwrapped(carried=0.01), "error"),
        (once, "info"),
        (unwrapped("0|1"), "info"),  # begun apart
    ):
        made.rounds = (due,)
        found = judge(made.batch(1, "0|1").batch(2, "0|1"))[0]
        assert (found.code, found.severity) == ("DDP015", expected)
        if expected == "error":
            assert (found.confidence, found.where[0].line) == ("medium", 12)
            assert "each so many steps at outer.py:12, which was never due in this run" in found.message
    made = sharded(unwrapped(carried=0.01))
    made.rounds = (due,)
    found = judge(made)[0]
    assert (found.confidence, found.where[0].line) == ("high", 12)


@pytest.mark.parametrize(
    ("averagings", "third", "severity"),
    [(2, "0|1|2", "warning"), (1, "0|1|2", "info"), (2, "0-1|2", "info")],
    ids=["several", "a single one", "two ranks agree"],
)
def test_averages_that_no_rank_takes(averagings: int, third: str, severity: str) -> None:
    made = Made(3, wrapped=False).look(1, "", "0|1|2").look(2, "0|1|2", "0|1|2").look(4, third, "0|1|2")
    made.averagings = averagings
    found = judge(made.batch(1, "0|1|2").batch(2, "0|1|2"))[0]
    assert (found.code, found.severity, found.confidence) == ("DDP015", severity, "low")
    if severity == "warning":
        assert [(each.line, each.role) for each in found.where][:2] == [
            (29, "culprit"),
            (STEP.line, "noticed"),
        ]
        assert (
            "2 times collectives reduced as many elements as it has parameters at train.py:29"
            in found.message
        )


@pytest.mark.parametrize(("averagings", "named"), [(2, True), (0, False)])
def test_averages_of_each_step_that_the_optimizer_does_not_use(averagings: int, named: bool) -> None:
    made = unwrapped(carried=1.0)
    made.averagings = averagings
    found = only(made.batch(1, "0|1").batch(2, "0|1"))
    assert (found.code, found.severity, found.confidence) == ("DDP015", "error", "medium")
    assert (found.where[0].line, found.where[0].role) == (STEP.line, "culprit")
    assert ((29, "noticed") in [(each.line, each.role) for each in found.where]) is named
    assert ("nothing reduces them" in found.message) is not named
    assert found.fix[0].text.startswith("wait for asynchronous collectives") is named


def test_parts_of_one_model_read_the_same() -> None:
    for start in ("", "0|1"):
        assert judge(unwrapped(start, carried=1.0).batch(1, "0-1").batch(2, "0-1").batch(3, "0-1")) == []


def test_unwrapped_models_of_other_shapes_are_parts_of_one() -> None:
    made = Made(2, wrapped=False)
    made.uniform = False
    assert judge(made.look(1, "0|1", "0|1").look(2, "0|1", "0|1")) == []


def test_parameters_that_are_averaged_between_steps_heal() -> None:
    every_step = Made(2, wrapped=False).look(1, "", "0|1").look(2, "", "0|1").look(4, "", "0|1")
    now_and_then = (
        Made(2, wrapped=False)
        .look(1, "", "0|1")
        .look(2, "0|1", "0|1")
        .look(4, "0|1", "0|1")
        .look(11, "", "0|1")
    )
    assert judge(every_step) == judge(now_and_then) == []


def test_a_look_that_not_all_ranks_took_is_no_comparison() -> None:
    """One rank alone agrees with itself: it tells neither that replicas are equal nor that they are equal again."""
    parted = Made(2).look(1).look(2, "0|1", "0|1").look(4, "0|1", "0|1")
    told = only(parted.look(8, who="0"))
    assert told.code == "NUM001"
    assert [item.text for item in told.evidence if item.text.startswith("equal")] == [
        "equal on all ranks before step 1"
    ]
    only(Made(2).look(1).look(2, gradients="0|1").look(4, who="1"))
    only(Made(3).look(1).look(2, "0|1-2", "0|1-2").look(4, who="1-2"))  # these two were equal before
    assert judge(Made(3).look(1).look(2, "0|1|2", "0|1|2").look(4)) == []
    assert judge(Made(3).look(1).look(2, "0|1|2", "0|1|2").look(4, who="0-1")) == []


def test_replicas_under_join_are_sure_to_be_equal_only_where_it_has_ended() -> None:
    own = Made(2).look(1).look(2).look(8, "0|1", "0|1", joined=True)
    assert judge(own) == []
    assert judge(own.look(21, joined=True, final=True)) == []
    assert only(Made(2).look(1).look(21, "0|1", joined=True, final=True)).code == "NUM001"
    assert only(Made(2).look(1).look(2, "0|1", "0|1").look(8, "0|1", "0|1", joined=True)).code == "NUM001"


def test_groups_of_a_wrapper_are_compared_each_for_itself() -> None:
    made = Made(4)
    made.groups = ["0-1", "2-3"]
    assert judge(made.look(1, "0-1|2-3", "0-1|2-3").look(2, "0-1|2-3", "0-1|2-3")) == []


def test_weights_changed_after_the_wrap_on_one_rank() -> None:
    found = only(Made(4).look(1, "1-3|0", "0-3").look(2, "1-3|0", "0-3"))
    assert (found.code, found.ranks) == ("NUM001", RankSet([0]))
    assert "changed afterwards" in found.message


def test_two_ranks_are_not_told_apart() -> None:
    found = only(Made(2).look(1).look(2).look(4, "0|1"))
    assert (found.code, found.ranks) == ("NUM001", RankSet([0, 1]))
    assert "equal gradients" in found.message


def test_last_bits_are_a_warning() -> None:
    close = tensor("fc.weight", 2, "0|1", norms=(1.0, 1.0 + 1e-9))
    found = only(Made(2).look(1).look(2, "0|1", "", close).look(4, "0|1", "", close))
    assert (found.code, found.severity) == ("NUM001", "warning")


def test_hooked_wrapper_is_not_blamed_for_what_its_hook_does() -> None:
    lacking = tensor("aux.weight", 2, missing="0-1")
    made = Made(2, hooks=("post_localSGD_hook",))
    made.look(1, "", "0|1", tensor("fc.weight", 2, "", "0|1"), lacking).look(2, "0|1", "0|1")
    assert only(made).code == "NUM001"


def test_nodes_are_joined_by_digest() -> None:
    one, other = Made(1).look(1).look(2), Made(1).look(1).look(2)
    nodes = []
    for place, made in enumerate((one, other)):
        row = made.training()
        steps = tuple(
            dataclasses.replace(
                look,
                values=tuple(
                    dataclasses.replace(
                        s, ranks=RankSet([place]), digest=f"{s.digest}{place if look.step > 1 else ''}"
                    )
                    for s in look.values
                ),
                gradients=tuple(
                    dataclasses.replace(s, ranks=RankSet([place]), digest=f"{s.digest}{place}")
                    for s in look.gradients
                ),
                wrappers=tuple(
                    dataclasses.replace(w, ranks=RankSet([place]), synced=0, last_synced=None)
                    for w in look.wrappers
                ),
            )
            for look in row.steps
        )
        setups = tuple(
            dataclasses.replace(
                s,
                ranks=RankSet([place]),
                wrappers=tuple(dataclasses.replace(w, group=RankSet([0, 1])) for w in s.wrappers),
            )
            for s in row.optimizers
        )
        nodes.append(
            dataclasses.replace(row, node=place, ranks=RankSet([place]), steps=steps, optimizers=setups)
        )
    found = only(Evidence(training=tuple(nodes)))
    assert (found.code, found.ranks) == ("DDP005", RankSet([0, 1]))


@pytest.mark.unmeasured
def test_sixteen_thousand_ranks_are_judged_in_bounded_time() -> None:
    world = 16_384
    made = Made(world)
    odd = f"0-{world // 2 - 1},{world // 2 + 1}-{world - 1}|{world // 2}"
    for step in (1, 2, 4, 8, 16, 32):
        made.look(step, odd if step > 4 else "", odd if step >= 4 else "")
    for index in (1, 2, 3):
        made.batch(index, "|".join(map(str, range(world))))
    began = time.monotonic()
    found = only(made)
    assert (found.code, found.ranks) == ("NUM001", RankSet([world // 2]))
    assert time.monotonic() - began < 120  # speed is the benchmarks'; this only bounds it


def test_tensors_of_nodes_are_joined_by_name() -> None:
    nodes = []
    for rank in (0, 1):
        row = Made(2).look(1).look(2, "0|1").training()
        values = (Share(f"d{rank}", RankSet([rank]), 1.0 + rank),)
        steps = [
            dataclasses.replace(
                look, tensors=tuple(dataclasses.replace(each, values=values) for each in look.tensors)
            )
            for look in row.steps
        ]
        nodes.append(dataclasses.replace(row, node=rank, steps=tuple(steps)))
    (replica,) = list_replicas(Evidence(training=tuple(nodes)))
    (joined,) = replica.looks[1].tensors
    assert [(share.ranks, share.norm) for share in joined.values] == [
        (RankSet([0]), 1.0),
        (RankSet([1]), 2.0),
    ]
