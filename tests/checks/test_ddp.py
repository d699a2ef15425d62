"""Steps with DDP, the user's factory, and unused parameters."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import (
    Evidence,
    Experiment,
    Frame,
    ModelResult,
    RankError,
    RankExit,
    RankMessage,
    RankSet,
    StackClass,
    UnusedParameter,
    UserError,
)
from ddpdoctor.judge import Finding, Registry, order_findings, run_checks
from ddpdoctor.testing import (
    assert_finds,
    assert_passes,
    assert_status,
    collect_checks,
    judge_one,
    make_world,
)
from ddpdoctor_checks import ddp, register

FACTORY = "pkg.mod:factory"


def with_experiment(name: str, nproc: int = 4, **changes: Any) -> Evidence:
    world = make_world(1, nproc)
    made = replace(Experiment(name, RankSet.span(nproc)), **changes)
    return replace(
        world, experiments=tuple(made if each.name == name else each for each in world.experiments)
    )


def fail_experiment(name: str, *said: tuple[str, str], nproc: int = 4, **changes: Any) -> Evidence:
    messages = tuple(RankMessage(RankSet.parse(ranks), text) for ranks, text in said)
    failed = RankSet().union(*(each.ranks for each in messages))
    return with_experiment(
        name, nproc, **{"passed": RankSet.span(nproc).minus(failed), "failures": messages, **changes}
    )


def with_model(nproc: int = 4, **changes: Any) -> Evidence:
    world = make_world(1, nproc)
    result = ModelResult(
        FACTORY,
        ranks=RankSet.span(nproc),
        parameters=12,
        trainable=12,
        steps=3,
        find_unused_needed=False,
        static_graph_ok=True,
        step_s=0.0042,
        step_s_with_search=0.0051,
    )
    return replace(world, launch=replace(world.launch, model=FACTORY), model=(replace(result, **changes),))


def make_unused(name: str, ran: bool, ranks: str = "0-3") -> UnusedParameter:
    module = name.rpartition(".")[0]
    return UnusedParameter(name, module, "Linear" if module else "Net", ran, RankSet.parse(ranks), 12)


def codes_in_order(evidence: Evidence) -> list[tuple[str, str]]:
    registry = Registry()
    register(registry)
    _, findings = run_checks(registry.checks, evidence)
    return [(each.code, each.role) for each in order_findings(findings, registry.checks)]


def codes_of(found: Finding) -> str:
    """All code to paste of a finding."""
    return "\n".join(fix.code or "" for fix in found.fix)


# -- experiments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "row", "words"),
    [
        ("gradient-mean", "ddp.gradients.mean", "DDP's gradient of fc.weight is not the mean across ranks"),
        (
            "autocast",
            "ddp.autocast.gradients",
            "Under bfloat16 autocast DDP's gradient of fc.weight is wrong",
        ),
        ("grad-scaler", "ddp.scaler.step", "With GradScaler the step updates fc.weight incorrectly"),
        ("no-sync", "ddp.no_sync.accumulates", "no_sync does not keep fc.weight local"),
    ],
)
def test_a_wrong_gradient_names_tensor_ranks_and_difference(name: str, row: str, words: str) -> None:
    world = fail_experiment(
        name,
        ("1-2", "expected 3 at element 0, got 2.5"),
        tensor="fc.weight",
        largest_difference=0.5,
        facts={"tolerance": 1e-6},
    )
    found = assert_finds(ddp.find_gradient_wrong, world, code="DDP019", id=row, severity="error")
    assert words in found.message
    assert "on ranks 1-2 (largest difference 0.5): expected 3" in found.message
    assert str(found.ranks) == "1-2"
    assert any("tolerance 1e-06" in item.text for item in found.evidence)
    assert (found.fix[0].command or "").endswith("--backend gloo")


def test_an_experiment_that_was_skipped_says_why() -> None:
    world = with_experiment("autocast", passed=RankSet(), skipped="this GPU has no bfloat16")
    why = assert_status(ddp.find_gradient_wrong, world, "skipped", id="ddp.autocast.gradients")
    assert why == "this GPU has no bfloat16"


def test_an_experiment_that_raised_is_told_once_and_its_row_is_unknown() -> None:
    world = fail_experiment(
        "no-sync",
        ("0,2-3", "RuntimeError: Connection closed by peer"),
        ("1", "RuntimeError: bucket 0 is broken"),
    )
    error = RankError(
        1, "ddp", "ProbeError", "the experiment no-sync failed: RuntimeError: bucket 0 is broken"
    )
    world = replace(world, errors=(error,))
    assert_status(ddp.find_gradient_wrong, world, "unknown", id="ddp.no_sync.accumulates")
    found = assert_finds(ddp.find_experiment_raised, world, code="BKD002")
    assert "The DDP experiment no-sync with gloo raised on rank 1: RuntimeError: bucket 0" in found.message
    assert (str(found.ranks), str(found.victims)) == ("1", "0,2-3")
    assert codes_in_order(world) == [("BKD002", "cause")]


def test_an_experiment_without_a_result_on_some_rank_is_unknown() -> None:
    world = with_experiment("gradient-mean", passed=RankSet([0, 1, 3]))
    assert "rank 2" in assert_status(ddp.find_gradient_wrong, world, "unknown", id="ddp.gradients.mean")


def test_experiments_that_were_not_reached_are_unknown() -> None:
    world = make_world(1, 2, experiments=())
    stages = tuple(
        replace(each, status="unreached", reason="stage collectives was cut") if each.stage == "ddp" else each
        for each in world.stages
    )
    world = replace(world, stages=stages)
    for function in (ddp.find_gradient_wrong, ddp.find_replicas_diverged, ddp.find_checkpoint_not_restored):
        assert "stage collectives was cut" in assert_status(function, world, "unknown")
    assert_status(ddp.verify_own_naming, world, "unknown")


def test_diverged_replicas_name_tensor_step_and_minority() -> None:
    world = fail_experiment(
        "replicas-equal",
        ("3", "net.0.bias after step 1 differs from most ranks"),
        tensor="net.0.bias",
        largest_difference=0.125,
        facts={"steps": 20, "first_step": 1},
    )
    found = assert_finds(ddp.find_replicas_diverged, world, code="NUM001", severity="error")
    assert found.message == (
        "Replicas diverged after step 1: net.0.bias on rank 3 differs from the other ranks (largest "
        "difference 0.125)."
    )
    assert (str(found.ranks), found.confidence, found.details["first_step"]) == ("3", "high", 1)


def test_a_reference_that_stands_alone_is_the_minority() -> None:
    world = fail_experiment("replicas-equal", ("1-3", "w differs from rank 0"), tensor="w")
    assert str(assert_finds(ddp.find_replicas_diverged, world).ranks) == "0"


@pytest.mark.parametrize("said", [[("1", "w differs")], [("0-1", "w has 2 different values")]])
def test_with_two_ranks_it_cannot_be_told_who_is_right(said: list[tuple[str, str]]) -> None:
    world = fail_experiment("replicas-equal", *said, nproc=2, tensor="w")
    found = assert_finds(ddp.find_replicas_diverged, world)
    assert "cannot be determined" in found.message
    assert (str(found.ranks), found.confidence) == ("0-1", "medium")


def test_a_checkpoint_that_comes_back_different_names_the_tensor() -> None:
    world = fail_experiment(
        "checkpoint", ("1-3", "optimizer.state.0 differs from what rank 0 saved"), tensor="optimizer.state.0"
    )
    found = assert_finds(ddp.find_checkpoint_not_restored, world, code="CKP006")
    assert (
        "The checkpoint of rank 0 differs after loading on ranks 1-3: optimizer.state.0 differs"
        in found.message
    )
    assert "map_location=device" in codes_of(found)


def test_a_self_test_that_fails_is_an_error_of_ours_and_no_finding() -> None:
    world = fail_experiment("unused-named", ("0-3", "the hooks named {}, planted were idle.weight"))
    rows, findings = judge_one(ddp.verify_own_naming, world)
    assert findings == []
    assert rows[0].status == "error"
    assert "planted was not named on ranks 0-3" in (rows[0].reason or "")
    assert_passes(ddp.verify_own_naming, make_world(1, 4))


# -- the factory ---------------------------------------------------------------------------------------


def fail_factory(kind: str, step: str, message: str, **changes: Any) -> Evidence:
    error = replace(UserError(kind, step, message, ranks=RankSet.span(4)), **changes)
    return with_model(errors=(error,), steps=0, find_unused_needed=None, static_graph_ok=None)


def test_an_error_in_the_factory_is_shown_as_the_users_with_its_line() -> None:
    world = fail_factory(
        "raised",
        "factory",
        "no such file: weights.pt",
        type="FileNotFoundError",
        file="pkg/mod.py",
        line=12,
        function="factory",
        source="state = torch.load('weights.pt')",
    )
    found = assert_finds(ddp.find_factory_failed, world, code="DDP020", severity="error")
    assert found.message == (
        "The model pkg.mod:factory raised at pkg/mod.py:12 in factory on ranks 0-3: "
        "FileNotFoundError: no such file: weights.pt"
    )
    (place,) = found.where
    assert (place.role, place.file, place.line, place.source) == (
        "culprit",
        "pkg/mod.py",
        12,
        "state = torch.load('weights.pt')",
    )


@pytest.mark.parametrize(
    ("kind", "step", "words", "fix"),
    [
        ("missing", "import", "does not exist", "def factory():"),
        ("wrong-type", "factory", "returns something other", "return model, ("),
        ("not-trainable", "wrap", "has no trainable parameter", "requires_grad_(True)"),
        ("wrong-output", "forward", "returns no loss", "return loss"),
        ("wrapped", "factory", "is already wrapped", "return model.module"),
        ("lazy", "wrap", "has parameters without a shape", "model(*inputs)"),
        ("differs", "wrap", "has different parameters", "model.parameters()"),
        ("group-destroyed", "factory", "destroyed the process group", ""),
        ("hung", "factory", "does not return", ""),
        ("raised", "import", "could not be imported", ""),
        ("raised", "wrap", "cannot be wrapped in DDP", ""),
        ("raised", "forward", "raised in its forward", ""),
        ("raised", "backward", "raised in its backward pass", ""),
    ],
)
def test_each_way_to_fail_has_its_words_and_its_fix(kind: str, step: str, words: str, fix: str) -> None:
    found = assert_finds(ddp.find_factory_failed, fail_factory(kind, step, "text"))
    assert f"The model {FACTORY} {words}" in found.message
    assert fix in codes_of(found)
    assert found.where == ()


def test_a_factory_that_failed_explains_the_rest_and_leaves_parameters_unknown() -> None:
    world = fail_factory("raised", "factory", "boom", type="ValueError")
    world = replace(world, errors=(RankError(0, "ddp", "ValueError", "boom"),))
    assert codes_in_order(world) == [("DDP020", "cause"), ("BKD002", "consequence")]
    assert "one step" in assert_status(ddp.find_parameters_unused, world, "unknown")


def test_a_hang_in_the_factory_is_read_from_the_stacks_of_the_cut_stage() -> None:
    world = make_world(1, 4)
    frames = (
        Frame("/usr/lib/python3.11/socket.py", 720, "readinto"),
        Frame("/home/u/pkg/mod.py", 7, "download"),
        Frame("/home/u/pkg/mod.py", 21, "factory"),
        Frame("/v/site-packages/ddpdoctor/launch/probes/model/probe.py", 50, "probe_model"),
    )
    waiting = (
        Frame("/v/site-packages/torch/distributed/distributed_c10d.py", 4000, "barrier"),
        Frame("/v/site-packages/ddpdoctor/launch/probes/model/probe.py", 60, "probe_model"),
    )
    stacks = (StackClass(RankSet([1]), frames), StackClass(RankSet([0, 2, 3]), waiting))
    stages = tuple(
        replace(each, status="cut", finished=RankSet(), unfinished=RankSet.span(4), stacks=stacks)
        if each.stage == "ddp"
        else each
        for each in world.stages
    )
    world = replace(world, stages=stages, launch=replace(world.launch, model=FACTORY))
    found = assert_finds(ddp.find_factory_failed, world, code="DDP020")
    assert "does not return at /home/u/pkg/mod.py:7 in download on rank 1" in found.message
    assert codes_in_order(world) == [("DDP020", "cause"), ("BKD011", "consequence")]


CRASH = """\
/v/torch/distributed/c10d_logger.py:83: FutureWarning: `torch.x` is deprecated.
  return func(*args, **kwargs)
Fatal Python error: Segmentation fault

Thread 0x00007f (most recent call first):
  File "/v/lib/python3.11/selectors.py", line 415 in select

Current thread 0x00007e (most recent call first):
  File "/v/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/proj/net.py", line 44 in build
  File "/v/site-packages/ddpdoctor/launch/probes/model/factory.py", line 131 in call_factory

Extension modules: numpy.core (total: 1)
"""


def with_death(**changes: Any) -> Evidence:
    world = with_model()
    gone = replace(RankExit(1, 4711, "ddp", user_step="factory"), **changes)
    return replace(world, model=(), exits=(gone,))


def test_a_crash_inside_the_model_is_the_models_with_its_line() -> None:
    world = with_death(signal=11, detail=CRASH)
    found = assert_finds(ddp.find_factory_failed, world, code="DDP020")
    assert found.message == (
        "The model pkg.mod:factory ended its process at /proj/net.py:44 in build while being built: rank 1 was "
        "killed by signal 11 (SIGSEGV) (Fatal Python error: Segmentation fault)."
    )
    assert [(each.file, each.line) for each in found.where] == [("/proj/net.py", 44)]
    assert codes_in_order(world)[:2] == [("DDP020", "cause"), ("BKD002", "consequence")]


def test_a_rank_killed_from_outside_is_not_the_models() -> None:
    world = with_death(signal=9)
    assert_status(ddp.find_factory_failed, world, "unknown")
    assert codes_in_order(world)[0] == ("BKD002", "cause")


def test_a_death_after_the_model_is_not_the_models() -> None:
    assert_status(ddp.find_factory_failed, with_death(exit_code=3, user_step=None), "unknown")


def test_without_a_model_nothing_of_it_is_asked() -> None:
    world = make_world(1, 2)
    for function in (
        ddp.find_factory_failed,
        ddp.find_parameters_unused,
        ddp.find_search_unneeded,
    ):
        assert assert_status(function, world, "skipped") == "no --model was given"


def test_a_model_without_a_result_is_unknown() -> None:
    world = make_world(1, 2)
    stages = tuple(
        replace(each, status="failed", reason="RuntimeError") if each.stage == "ddp" else each
        for each in world.stages
    )
    world = replace(world, stages=stages, launch=replace(world.launch, model=FACTORY))
    assert_status(ddp.find_factory_failed, world, "unknown")
    assert_status(ddp.find_parameters_unused, world, "unknown")


# -- unused parameters ---------------------------------------------------------------------------------


def test_unused_parameters_name_owner_and_whether_its_forward_ran() -> None:
    unused = (
        make_unused("head.weight", False),
        make_unused("head.bias", False),
        make_unused("aux.3.weight", True),
        make_unused("scale", True),
    )
    found = assert_finds(
        ddp.find_parameters_unused, with_model(unused=unused), code="DDP001", severity="error"
    )
    assert found.message == (
        "4 parameters of pkg.mod:factory received no gradient on any rank: head.weight and head.bias (of "
        "Linear head, whose forward never ran), aux.3.weight (of Linear aux.3, whose forward ran) and scale "
        "(of the model itself, a Net, whose forward ran)."
    )
    assert str(found.ranks) == "0-3"
    assert "model.get_submodule('head').requires_grad_(False)" in codes_of(found)
    assert "0.0 * sum" in codes_of(found)
    assert [each["name"] for each in found.details["parameters"]] == [each.name for each in unused]


def test_the_fix_says_that_a_static_graph_would_do_and_the_search_is_wasted() -> None:
    found = assert_finds(
        ddp.find_parameters_unused,
        with_model(unused=(make_unused("head.weight", False),), find_unused_needed=True),
    )
    last = found.fix[-1]
    assert "static_graph=True" in (last.code or "")
    assert "find_unused_parameters=True would waste" in last.text
    assert "(5.1 ms per step with the search, 4.2 ms without)" in last.text


def test_the_fix_says_that_the_search_is_needed_where_use_varies() -> None:
    world = with_model(
        unused=(make_unused("head.weight", False),), find_unused_needed=True, static_graph_ok=False
    )
    last = assert_finds(ddp.find_parameters_unused, world).fix[-1]
    assert "find_unused_parameters=True" in (last.code or "")
    assert "static_graph is not enough" in last.text


def test_parameters_unused_on_some_ranks_have_their_own_code_and_name_the_ranks() -> None:
    world = with_model(unused=(make_unused("expert.1.weight", False, "1,3"),), find_unused_needed=True)
    found = assert_finds(ddp.find_parameters_unused, world, code="DDP002", severity="error")
    assert "received no gradient on ranks 1, 3 but did on others: expert.1.weight" in found.message
    assert str(found.ranks) == "1,3"
    assert "find_unused_parameters=True" in (found.fix[-1].code or "")
    assert "requires_grad_(False)" not in codes_of(found)


def test_thousands_of_unused_parameters_are_counted() -> None:
    unused = tuple(make_unused(f"layers.{index}.weight", False) for index in range(5000))
    found = assert_finds(ddp.find_parameters_unused, with_model(unused=unused))
    assert len(found.message) < 500
    assert (len(found.details["parameters"]), found.details["parameters_left_out"]) == (200, 4800)


def test_a_model_that_uses_everything_passes_and_the_search_is_said_to_be_wasted() -> None:
    world = with_model()
    assert_passes(ddp.find_parameters_unused, world)
    found = assert_finds(ddp.find_search_unneeded, world, code="DDP011", severity="info")
    assert "in 3 steps on every rank" in found.message
    assert "5.1 ms per step with the search" in found.message
    rows, _ = judge_one(ddp.find_search_unneeded, world)
    assert rows[0].status == "pass"


def test_nothing_is_said_of_the_search_where_it_is_needed_or_unknown() -> None:
    assert_passes(ddp.find_search_unneeded, with_model(find_unused_needed=True))
    assert_passes(ddp.find_search_unneeded, with_model(find_unused_needed=None))


def test_a_search_that_seems_to_save_time_is_noise() -> None:
    found = assert_finds(ddp.find_search_unneeded, with_model(step_s=0.0042, step_s_with_search=0.002))
    assert "(its cost was within the noise of these steps)" in found.message


def test_a_factory_in_a_file_is_called_as_a_file() -> None:
    world = fail_factory("raised", "factory", "boom")
    world = replace(world, model=(replace(world.model[0], factory="models/net.py:build"),))
    found = assert_finds(ddp.find_factory_failed, world)
    assert "runpy.run_path('models/net.py')['build']()" in (found.fix[0].command or "")


def test_costs_that_were_not_measured_are_left_out() -> None:
    found = assert_finds(ddp.find_search_unneeded, with_model(step_s_with_search=None))
    assert "ms per step" not in found.message


# -- scale ---------------------------------------------------------------------------------------------


@pytest.mark.unmeasured
def test_16384_ranks_are_judged_in_seconds() -> None:
    size = 16384
    world = make_world(2048, 8)
    odd = RankSet(range(1, size, 2))
    wrong = Experiment(
        "replicas-equal",
        RankSet.span(size).minus(odd),
        tuple(RankMessage(RankSet([rank]), f"w on rank {rank}") for rank in odd),
        tensor="w",
    )
    model = ModelResult(FACTORY, RankSet.span(size), steps=3, unused=(make_unused("a.w", True, str(odd)),))
    world = replace(
        world,
        experiments=(*(each for each in world.experiments if each.name != wrong.name), wrong),
        model=(model,),
        launch=replace(world.launch, model=FACTORY),
    )
    checks = [
        each
        for function in vars(ddp).values()
        if hasattr(function, "__ddpdoctor_checks__")
        for each in collect_checks(function)
    ]
    started = time.perf_counter()
    rows, findings = run_checks(checks, world)
    assert time.perf_counter() - started < 120  # not quadratic; the bar itself is the benchmark's
    assert {each.code for each in findings} == {"NUM001", "DDP002"}
    assert all(len(each.message) < 600 for each in findings)
    assert "error" not in {row.status for row in rows}


def test_a_healthy_world_passes() -> None:
    for world in (make_world(1, 4), make_world(3, 2)):
        for function in vars(ddp).values():
            if hasattr(function, "__ddpdoctor_checks__"):
                rows, findings = judge_one(function, world)
                assert findings == []
                assert {row.status for row in rows} <= {"pass", "skipped"}
