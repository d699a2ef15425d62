from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from ddpdoctor.evidence import STRATEGIES, RankSet
from ddpdoctor.launch.context import RankContext
from ddpdoctor.launch.probes import strategies, toy
from ddpdoctor.launch.probes.strategies import probe_strategies
from tests.launch.worlds import Patch, run_world


@pytest.mark.parametrize(
    ("world_size", "nodes"),
    [(3, 1), pytest.param(1, 1, marks=pytest.mark.long), pytest.param(4, 2, marks=pytest.mark.long)],
)
def test_every_strategy_passes_in_a_healthy_world(world_size: int, nodes: int, tmp_path: Path) -> None:
    world = run_world(probe_strategies, world_size, tmp_path, nodes=nodes)
    assert world.errors == {}
    rows = {each.name: each for each in world.evidence.strategies}
    assert tuple(rows) == STRATEGIES
    skipped = {name: row.skipped for name, row in rows.items() if row.skipped is not None}
    for name, row in rows.items():
        assert row.failures == (), row
        assert name in skipped or row.passed == RankSet.span(world_size), name
    expected = {"pp": "requires at least two ranks"} if world_size == 1 else {}
    assert skipped == ({"dcp": "the ranks have no directory in common"} if nodes > 1 else expected)
    assert list(tmp_path.iterdir()) == []


def spoil_gradients(ctx: RankContext) -> None:
    """Rank 1 reduces another gradient than its samples give."""
    real = toy.make_inputs
    if ctx.rank == 1:
        setattr(strategies, "make_inputs", lambda *args: real(*args) + 1)  # noqa: B010  # mypy wants no assignment


def spoil_samples(ctx: RankContext) -> None:
    """Rank 0 reads other samples than the others."""
    real = strategies._make_samples
    if ctx.rank == 0:
        setattr(strategies, "_make_samples", lambda device: real(device) + 1)  # noqa: B010


def spoil_checkpoint(ctx: RankContext) -> None:
    """What rank 1 loads is not what was saved."""
    real: Any = vars(dcp)["load"]

    def load(state: dict[str, Any], **kwargs: Any) -> None:
        real(state, **kwargs)
        if ctx.rank == 1:
            state["weight"].to_local().add_(1)

    setattr(dcp, "load", load)  # noqa: B010


@pytest.mark.parametrize(
    ("name", "patch", "words"),
    [
        ("tp", spoil_samples, "is not that of one process"),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                ("fsdp2", spoil_gradients, "is not the mean of the gradients across ranks"),
                ("pp", spoil_samples, "is not that of one process"),
                ("dcp", spoil_checkpoint, "is not what was saved"),
            )
        ),
    ],
)
def test_a_wrong_result_is_seen(name: str, patch: Patch, words: str, tmp_path: Path) -> None:
    world = run_world(probe_strategies, 2, tmp_path, patch=patch)
    row = next(each for each in world.evidence.strategies if each.name == name)
    assert row.failures
    assert words in row.failures[0].text
    assert row.largest_difference
    assert row.largest_difference >= 0.5


def lose_pipelines(ctx: RankContext) -> None:
    """Torch has no pipelines, and its meshes cannot be made on rank 1."""
    real, make_mesh = strategies._take, strategies._make_mesh

    def take(*places: tuple[str, str]) -> Any:
        kept = [
            (f"no.{module}", name) if "pipelining" in module else (module, name) for module, name in places
        ]
        return real(*kept)

    def refuse(ctx: RankContext) -> Any:
        if ctx.rank == 1:
            raise RuntimeError("no mesh here")
        return make_mesh(ctx)

    setattr(strategies, "_take", take)  # noqa: B010
    setattr(strategies, "TRIALS", {"pp": strategies.try_pp, "tp": strategies.try_tp})  # noqa: B010
    setattr(strategies, "_make_mesh", refuse)  # noqa: B010


def test_what_this_torch_lacks_is_skipped_and_what_raises_is_told(tmp_path: Path) -> None:
    world = run_world(
        probe_strategies, 2, tmp_path, patch=lose_pipelines, timeout_s=12.0
    )  # rank 0 waits it out
    rows = {each.name: each for each in world.evidence.strategies}
    assert rows["pp"].skipped
    assert "PipelineStage is not available in torch" in rows["pp"].skipped
    assert "RuntimeError: no mesh here" in {said.text for said in rows["tp"].failures}
    assert "the strategy tp failed" in world.errors[1]


def refuse_reduce_scatter(ctx: RankContext) -> None:
    """Gloo of an older torch: it refuses what FSDP2 needs, on every rank."""

    def refuse(*args: Any, **options: Any) -> None:
        raise RuntimeError("ProcessGroupGloo does not support _reduce_scatter_base")

    for name in ("reduce_scatter_tensor", "reduce_scatter_single"):  # what FSDP2 calls by version
        if hasattr(dist, name):
            setattr(dist, name, refuse)
    setattr(strategies, "TRIALS", {name: strategies.TRIALS[name] for name in ("fsdp2", "dcp")})  # noqa: B010


@pytest.mark.long
def test_what_the_backend_refuses_is_skipped_and_the_rest_goes_on(tmp_path: Path) -> None:
    world = run_world(probe_strategies, 2, tmp_path, patch=refuse_reduce_scatter)
    assert world.errors == {}
    rows = {each.name: each for each in world.evidence.strategies}
    assert "with gloo: RuntimeError: ProcessGroupGloo does not support" in (rows["fsdp2"].skipped or "")
    assert rows["fsdp2"].failures == ()
    assert rows["dcp"].passed == RankSet([0, 1])


def leave_sync_off(ctx: RankContext) -> None:
    """fully_shard never reduces again once it was told to wait."""
    from torch.distributed.fsdp import FSDPModule

    real = FSDPModule.set_requires_gradient_sync
    setattr(FSDPModule, "set_requires_gradient_sync", lambda self, _: real(self, False))  # noqa: B010
    setattr(strategies, "TRIALS", {"fsdp2": strategies.try_fsdp2})  # noqa: B010


@pytest.mark.long
def test_accumulated_gradients_that_are_never_reduced_are_seen(tmp_path: Path) -> None:
    world = run_world(probe_strategies, 2, tmp_path, patch=leave_sync_off)
    row = next(each for each in world.evidence.strategies if each.name == "fsdp2")
    assert row.failures
    assert any("has no gradient" in said.text for said in row.failures)
