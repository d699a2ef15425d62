from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpdoctor.evidence import Experiment, RankSet
from ddpdoctor.launch.context import RankContext
from ddpdoctor.launch.probes import toy, trials, usage
from ddpdoctor.launch.probes.ddp import EXPERIMENTS, probe_ddp
from ddpdoctor.launch.probes.deferral import deferred_compiler
from ddpdoctor.launch.probes.fingerprints import find_majority, fingerprint
from tests.launch.worlds import World, run_world


def by_name(world: World) -> dict[str, Experiment]:
    return {each.name: each for each in world.evidence.experiments}


def failed(world: World) -> set[str]:
    return {each.name for each in world.evidence.experiments if each.failures}


@pytest.mark.parametrize(("world_size", "nodes"), [(1, 1), (2, 1), (3, 1), (4, 1), (8, 1), (3, 3)])
def test_every_experiment_passes_in_a_healthy_world(world_size: int, nodes: int, tmp_path: Path) -> None:
    world = run_world(probe_ddp, world_size, tmp_path, nodes=nodes)
    assert world.errors == {}
    rows = by_name(world)
    assert list(rows) == list(EXPERIMENTS)
    for row in rows.values():
        assert row.skipped is None, row.name
        assert row.failures == (), row.name
        assert row.passed == RankSet.span(world_size), row.name
    assert rows["gradient-mean"].facts["world_size"] == world_size
    assert rows["checkpoint"].facts["by"] == ("file" if nodes == 1 else "broadcast")
    assert rows["unused-named"].facts["named_by_ddp"]
    assert list(tmp_path.iterdir()) == []


def sum_instead_of_mean(ctx: RankContext) -> None:
    """DDP's gradients are summed and not averaged, on every rank."""
    _hook_models(lambda buffer: buffer)


def spoil_one_rank(ctx: RankContext) -> None:
    """Rank 1 gets another mean than the others."""
    spoilt = 1.0 if ctx.rank == 1 else 0.0
    _hook_models(lambda buffer: buffer / ctx.world_size + spoilt)


def _hook_models(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    original = toy.wrap

    def reduce(bucket: Any) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        dist.all_reduce(buffer)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(change(buffer))
        return done

    def wrap(*args: Any, **options: Any) -> DistributedDataParallel:
        model = original(*args, **options)
        # DDP looks at annotations of hooks, and texts are not what it wants: a lambda has none
        model.register_comm_hook(None, lambda state, bucket: reduce(bucket))
        return model

    replace(trials, "wrap", wrap)


def replace(owner: object, name: str, stand_in: object) -> None:
    """Break something in a rank's process, which ends with the test."""
    setattr(owner, name, stand_in)


def test_a_sum_in_place_of_the_mean_is_found_on_every_rank(tmp_path: Path) -> None:
    world = run_world(probe_ddp, 3, tmp_path, patch=sum_instead_of_mean)
    rows = by_name(world)
    assert {"gradient-mean", "autocast", "no-sync", "grad-scaler"} <= failed(world)
    row = rows["gradient-mean"]
    assert not row.passed
    assert row.tensor == "first.weight"
    assert row.largest_difference is not None
    assert row.largest_difference > 1
    assert "is not the mean of the gradients across ranks: expected" in row.failures[0].text


def test_a_gradient_that_is_wrong_on_one_rank_names_that_rank(tmp_path: Path) -> None:
    world = run_world(probe_ddp, 3, tmp_path, patch=spoil_one_rank)
    row = by_name(world)["gradient-mean"]
    assert row.passed == RankSet([0, 2])
    assert {message.ranks for message in row.failures} == {RankSet([1])}
    replicas = by_name(world)["replicas-equal"]
    assert replicas.failures[0].ranks == RankSet([1])
    assert replicas.facts["first_step"] == 1
    assert replicas.tensor == "first.weight"


def nudge_parameters_of_rank_2(ctx: RankContext) -> None:
    if ctx.rank != 2:
        return
    original = torch.optim.SGD.step
    steps = 0

    def step(self: torch.optim.SGD, *args: Any, **options: Any) -> Any:
        nonlocal steps
        done = original(self, *args, **options)
        steps += 1
        if steps == 7:
            with torch.no_grad():
                self.param_groups[0]["params"][2][1, 1] += 1e-6
        return done

    replace(torch.optim.SGD, "step", step)


def test_replicas_that_drift_apart_name_tensor_step_and_the_rank_in_the_minority(tmp_path: Path) -> None:
    world = run_world(probe_ddp, 3, tmp_path, patch=nudge_parameters_of_rank_2)
    row = by_name(world)["replicas-equal"]
    assert row.passed == RankSet([0, 1])
    assert [(m.ranks, m.text) for m in row.failures] == [
        (RankSet([2]), "second.weight after step 7 differs from most ranks")
    ]
    assert (row.tensor, row.facts["first_step"]) == ("second.weight", 7)
    assert row.largest_difference is not None
    assert row.largest_difference > 0


def spoil_rank_1_of_2(ctx: RankContext) -> None:
    spoil_one_rank(ctx)


def test_with_two_ranks_nobody_is_blamed_alone(tmp_path: Path) -> None:
    row = by_name(run_world(probe_ddp, 2, tmp_path, patch=spoil_rank_1_of_2))["replicas-equal"]
    assert not row.passed
    assert row.failures[0].ranks == RankSet([0, 1])


def disable_no_sync(ctx: RankContext) -> None:
    replace(DistributedDataParallel, "no_sync", lambda self: contextlib.nullcontext())


def test_a_no_sync_that_reduces_is_found(tmp_path: Path) -> None:
    world = run_world(probe_ddp, 2, tmp_path, patch=disable_no_sync)
    assert failed(world) == {"no-sync"}
    assert "this rank's own gradient inside no_sync" in by_name(world)["no-sync"].failures[0].text


def disable_autocast(ctx: RankContext) -> None:
    replace(torch, "autocast", lambda *args, **options: contextlib.nullcontext())


def test_an_autocast_that_does_nothing_is_found(tmp_path: Path) -> None:
    world = run_world(probe_ddp, 2, tmp_path, patch=disable_autocast)
    assert failed(world) == {"autocast"}
    assert "torch.float32 under autocast" in by_name(world)["autocast"].failures[0].text


def keep_scale_of_rank_0(ctx: RankContext) -> None:
    original = torch.amp.GradScaler.update

    def update(self: Any) -> None:
        original(self)
        self._scale.fill_(trials.SCALE)

    if ctx.rank == 0:
        replace(torch.amp.GradScaler, "update", update)


def test_a_scaler_that_diverges_is_found_on_its_rank(tmp_path: Path) -> None:
    world = run_world(probe_ddp, 2, tmp_path, patch=keep_scale_of_rank_0)
    row = by_name(world)["grad-scaler"]
    assert row.passed == RankSet([1])
    assert any("the scale is 256 after an infinity on one rank, expected 128" in m.text for m in row.failures)


def step_through_infinities(ctx: RankContext) -> None:
    def step(self: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, *args: Any) -> Any:
        self.unscale_(optimizer)
        return optimizer.step()

    replace(torch.amp.GradScaler, "step", step)


def test_a_scaler_that_does_not_skip_is_found(tmp_path: Path) -> None:
    row = by_name(run_world(probe_ddp, 2, tmp_path, patch=step_through_infinities))["grad-scaler"]
    assert "is not unchanged by a step with an infinity on one rank" in row.failures[0].text


def load_something_else_on_rank_1(ctx: RankContext) -> None:
    original = torch.load

    def load(*args: Any, **options: Any) -> Any:
        state = original(*args, **options)
        if ctx.rank == 1:
            state["model"]["second.bias"][0] += 0.5
        return state

    replace(torch, "load", load)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_tampered_checkpoint_names_tensor_and_rank(nodes: int, tmp_path: Path) -> None:
    world = run_world(probe_ddp, 2, tmp_path, patch=load_something_else_on_rank_1, nodes=nodes)
    assert failed(world) == {"checkpoint"}
    row = by_name(world)["checkpoint"]
    assert row.passed == RankSet([0])
    assert row.tensor == "model.second.bias"
    assert row.largest_difference == pytest.approx(0.5)


def save_half_the_state(ctx: RankContext) -> None:
    original = torch.save
    replace(
        torch, "save", lambda state, *args, **options: original({"model": state["model"]}, *args, **options)
    )


def test_a_checkpoint_that_lacks_tensors_is_found(tmp_path: Path) -> None:
    row = by_name(run_world(probe_ddp, 2, tmp_path, patch=save_half_the_state))["checkpoint"]
    assert not row.passed
    assert row.failures[0].text.startswith("loaded ['model.first.bias'")


def overlook_unused(ctx: RankContext) -> None:
    replace(trials, "find_unused", lambda *args, **options: usage.find_unused(*args, **options)[1:])


def test_hooks_that_overlook_a_planted_parameter_are_found(tmp_path: Path) -> None:
    world = run_world(probe_ddp, 2, tmp_path, patch=overlook_unused)
    assert failed(world) == {"unused-named"}


def raise_in_no_sync(ctx: RankContext) -> None:
    def broken(self: DistributedDataParallel) -> None:
        raise RuntimeError("no such thing")

    replace(DistributedDataParallel, "no_sync", broken)


def test_an_experiment_that_raises_is_recorded_and_ends_the_probe(tmp_path: Path) -> None:
    world = run_world(probe_ddp, 2, tmp_path, patch=raise_in_no_sync)
    assert set(world.errors.values()) == {
        "ProbeError: the experiment no-sync failed: RuntimeError: no such thing"
    }
    rows = by_name(world)
    assert list(rows) == ["gradient-mean", "no-sync"]
    assert rows["no-sync"].failures[0].text == "RuntimeError: no such thing"


def run_and_look(ctx: RankContext) -> tuple[bool, bool, bool]:
    """Return whether the compiler was loaded, random state kept and no DDP object left."""
    import gc

    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    probe_ddp(ctx)
    left = any(isinstance(thing, DistributedDataParallel) for thing in gc.get_objects())
    return "torch._dynamo" in sys.modules, torch.equal(torch.rand(1), expected), left


def test_nothing_is_left_behind_in_the_rank(tmp_path: Path) -> None:
    world = run_world(run_and_look, 2, tmp_path)
    assert [report.result for report in world.reports] == [(False, True, False)] * 2


def ask_the_real_compiler(ctx: RankContext) -> tuple[bool, bool]:
    with deferred_compiler():
        stands = "torch._dynamo" in sys.modules
        import torch._dynamo.config

        real = hasattr(torch._dynamo, "explain")
    return stands, real and hasattr(sys.modules["torch._dynamo"], "explain")


def test_whoever_asks_more_of_the_compiler_gets_the_real_one(tmp_path: Path) -> None:
    assert run_world(ask_the_real_compiler, 1, tmp_path, group=False).reports[0].result == (True, True)


def test_reference_gradients_fit_bfloat16_exactly() -> None:
    for steps in ([0], [1], [2], [3], [4]):
        for rank in range(12):
            for gradient in toy.compute_gradients([rank], steps).values():
                assert gradient.abs().max() <= toy.LARGEST_GRADIENT
                assert torch.equal(gradient, gradient.round())


def test_ranks_have_different_gradients() -> None:
    first, second = toy.compute_gradients([0], [0]), toy.compute_gradients([1], [0])
    assert all(not torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("index", [0, 5, 999])
def test_a_single_bit_changes_the_fingerprint(index: int) -> None:
    values = torch.linspace(0, 1, 1000)
    before = fingerprint(values)
    values.view(torch.int32)[index] ^= 1
    assert fingerprint(values) != before


def test_fingerprints_take_scalars_and_other_types() -> None:
    assert fingerprint(torch.tensor(1.0)) != fingerprint(torch.tensor(2.0))
    assert fingerprint(torch.tensor([True])) != fingerprint(torch.tensor([False]))
    assert fingerprint(torch.empty(0)) == 0


def test_a_majority_is_more_than_half() -> None:
    assert find_majority([1, 1, 2]) == 1
    assert find_majority([1, 2]) is None
    assert find_majority([1, 1, 2, 2]) is None
