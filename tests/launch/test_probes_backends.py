from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ddpdoctor.evidence import BackendResult, RankSet
from ddpdoctor.launch.context import RankContext
from ddpdoctor.launch.probes import backends
from ddpdoctor.launch.probes.backends import examine_backend, get_main_backend, probe_backends
from tests.launch.worlds import World, make_plan, run_world


def by_name(world: World) -> dict[str, BackendResult]:
    return {each.backend: each for each in world.evidence.backends}


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_backend_has_a_row_and_gloo_passes(world_size: int, tmp_path: Path) -> None:
    world = run_world(probe_backends, world_size, tmp_path)
    assert world.errors == {}
    rows = by_name(world)
    assert set(rows) == {"gloo", "nccl", "mpi", "ucc", "xccl"}
    gloo = rows["gloo"]
    assert gloo.asked
    assert gloo.built
    assert gloo.group == gloo.collective == RankSet.span(world_size)
    assert gloo.failures == ()
    for name, row in rows.items():
        if not row.built:
            assert row.reason == "not in this PyTorch build", name


def offer_gloo_as_ucc(ctx: RankContext) -> None:
    """ucc is said to be built, and its group is really gloo's; the default group counts as nccl's."""
    backends.BACKENDS = {"gloo": ("cpu",), "ucc": ("cpu",)}
    backends.is_built = lambda name: True
    original = dist.new_group

    def make_gloo(*args: Any, **options: Any) -> Any:
        return original(*args, **{**options, "backend": "gloo"})

    dist.new_group = make_gloo


def test_a_second_backend_gets_a_group_of_its_own(tmp_path: Path) -> None:
    rows = by_name(run_world(probe_backends, 3, tmp_path, patch=offer_gloo_as_ucc))
    assert rows["ucc"].group == rows["ucc"].collective == RankSet.span(3)
    assert not rows["ucc"].asked


def offer_ucc_on_rank_0_only(ctx: RankContext) -> None:
    offer_gloo_as_ucc(ctx)
    backends.is_built = lambda name: name == "gloo" or ctx.rank == 0


def test_a_backend_that_some_ranks_lack_is_tried_by_none(tmp_path: Path) -> None:
    rows = by_name(run_world(probe_backends, 2, tmp_path, patch=offer_ucc_on_rank_0_only))
    assert not rows["ucc"].group
    assert rows["ucc"].reason in ("other ranks cannot use it", "not in this PyTorch build")


def fail_second_group_on_rank_1(ctx: RankContext) -> None:
    offer_gloo_as_ucc(ctx)
    working = dist.new_group

    def failing(*args: Any, **options: Any) -> Any:
        group = working(*args, **options)
        if ctx.rank == 1:
            raise RuntimeError("no transport")
        return group

    dist.new_group = failing


def test_a_second_group_that_fails_is_recorded_and_harms_nothing(tmp_path: Path) -> None:
    limits = {"backends": 4.0}
    world = run_world(
        probe_backends, 2, tmp_path, patch=fail_second_group_on_rank_1, limits=limits, timeout_s=4.0
    )
    assert world.errors == {}
    ucc = by_name(world)["ucc"]
    assert RankSet([1]) in [message.ranks for message in ucc.failures]
    assert any(message.text == "RuntimeError: no transport" for message in ucc.failures)
    assert not ucc.collective


def add_one(ctx: RankContext) -> None:
    original = dist.all_reduce

    def wrong(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        done = original(tensor, *args, **options)
        if tensor.is_floating_point():
            tensor += 1
        return done

    dist.all_reduce = wrong


def test_a_wrong_sum_of_the_default_backend_is_a_failure(tmp_path: Path) -> None:
    gloo = by_name(run_world(probe_backends, 2, tmp_path, patch=add_one))["gloo"]
    assert gloo.group == RankSet.span(2)
    assert not gloo.collective
    assert "1023 of 1023 elements differ" in gloo.failures[0].text


def break_default(ctx: RankContext) -> None:
    def broken(*args: Any, **options: Any) -> None:
        raise RuntimeError("Connection closed by peer")

    dist.all_reduce = broken


def test_an_exception_of_the_default_backend_ends_the_stage(tmp_path: Path) -> None:
    world = run_world(probe_backends, 2, tmp_path, patch=break_default)
    assert set(world.errors) == {0, 1}
    gloo = by_name(world)["gloo"]
    assert gloo.failures[0].text == "RuntimeError: Connection closed by peer"


def make_context(tmp_path: Path, ranks: int = 2, device: str = "cpu") -> RankContext:
    plan = make_plan(tmp_path, ranks)
    return RankContext(
        rank=1,
        world_size=ranks,
        local_rank=1,
        local_world_size=ranks,
        node=0,
        host="h",
        device=device,
        backend="gloo",
        plan=plan,
        emit=lambda kind, row: None,
        note=lambda text: None,
    )


def test_nccl_needs_a_gpu_for_each_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = make_context(tmp_path)
    monkeypatch.setattr(backends, "is_built", lambda name: True)
    monkeypatch.setattr(backends, "count_devices", lambda kind: 1)
    few = examine_backend("nccl", ctx)
    assert (few.reason, few.present) == ("1 cuda devices for 2 ranks on this node", True)
    monkeypatch.setattr(backends, "count_devices", lambda kind: 0)
    none = examine_backend("nccl", ctx)
    assert (none.reason, none.present) == ("torch sees no cuda device here", False)
    monkeypatch.setattr(backends, "count_devices", lambda kind: 2)
    assert examine_backend("nccl", ctx).device == "cuda:1"


def test_mpi_is_tried_only_under_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = make_context(tmp_path)
    monkeypatch.setattr(backends, "is_built", lambda name: True)
    assert examine_backend("mpi", ctx, {}).reason == "needs ranks that were started by mpirun"
    assert examine_backend("mpi", ctx, {"OMPI_COMM_WORLD_SIZE": "2"}).reason is None


@pytest.mark.parametrize(
    ("backend", "device", "expected"),
    [
        ("gloo", "cpu", "gloo"),
        ("cpu:gloo,cuda:nccl", "cuda:1", "nccl"),
        ("cpu:gloo,cuda:nccl", "cpu", "gloo"),
    ],
)
def test_the_main_backend_is_the_one_that_serves_the_device(backend: str, device: str, expected: str) -> None:
    assert get_main_backend(backend, device) == expected
