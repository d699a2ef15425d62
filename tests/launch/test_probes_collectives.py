from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ddpdoctor.evidence import CollectiveCase, RankSet
from ddpdoctor.launch.context import RankContext
from ddpdoctor.launch.probes.collectives import (
    OBJECTS,
    POINT_TO_POINT,
    choose_members,
    compare_outcome,
    plan_cases,
    probe_collectives,
)
from ddpdoctor.launch.probes.operations import RUNNERS, Arena, Outcome, Spec
from tests.launch.worlds import World, run_world


def bad_cases(world: World) -> list[CollectiveCase]:
    return [case for case in world.evidence.collectives if case.failures]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_every_operation_passes_on_every_rank_of_a_healthy_world(world_size: int, tmp_path: Path) -> None:
    world = run_world(probe_collectives, world_size, tmp_path)
    cases = world.evidence.collectives
    assert world.errors == {}
    assert bad_cases(world) == []
    assert {case.op for case in cases} == set(RUNNERS)
    everyone = RankSet.span(world_size)
    for case in cases:
        if case.unsupported is None:
            assert case.passed == (everyone if case.group == "world" else RankSet(range(0, world_size, 2)))
    refused = {case.op for case in cases if case.unsupported}
    assert refused <= {*OBJECTS, *(POINT_TO_POINT if world_size == 1 else ())}
    assert {case.group for case in cases} == ({"world", "sub-group"} if world_size > 1 else {"world"})


def test_the_plan_covers_types_reductions_and_sizes(tmp_path: Path) -> None:
    cases = run_world(probe_collectives, 2, tmp_path).evidence.collectives
    summed = [case for case in cases if case.op == "all_reduce"]
    assert {"float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8"} <= {
        c.dtype for c in summed
    }
    assert {"SUM", "PRODUCT", "MIN", "MAX", "AVG"} <= {case.reduction for case in summed}
    assert {1, 1023} < {case.count for case in summed}


def test_a_large_world_takes_fewer_cases_but_no_fewer_operations() -> None:
    small, large = list(plan_cases(16, "nccl")), list(plan_cases(64, "nccl"))
    assert len(large) < len(small) / 2
    assert {spec.op for spec in large} == {spec.op for spec in small} == set(RUNNERS)


def test_what_gloo_makes_of_many_all_reduces_is_left_to_the_subgroup() -> None:
    assert {spec.op for spec in plan_cases(64, "gloo")} == set(RUNNERS) - {"reduce_scatter"}
    assert {spec.op for spec in plan_cases(8, "gloo")} == set(RUNNERS)


@pytest.mark.parametrize("size", [2, 3, 16, 33, 64, 1024])
def test_the_subgroup_is_spread_over_the_world_and_stays_small(size: int) -> None:
    members = choose_members(size)
    assert len(members) <= 16
    assert members[0] == 0
    assert members[-1] >= size - 1 - (size // len(members))
    if size <= 32:
        assert members == tuple(range(0, size, 2))


def test_the_list_form_is_tried_in_the_subgroup_of_a_world_of_nine(tmp_path: Path) -> None:
    world = run_world(probe_collectives, 9, tmp_path)
    assert world.errors == {}
    assert bad_cases(world) == []
    cases = [case for case in world.evidence.collectives if case.op == "reduce_scatter"]
    assert [(case.group, case.passed) for case in cases] == [("sub-group", RankSet(range(0, 9, 2)))]


def corrupt_all_reduce(ctx: RankContext) -> None:
    """On rank 1 every all_reduce of float32 gives one wrong element."""
    if ctx.rank != 1:
        return
    original = dist.all_reduce

    def corrupted(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        work = original(tensor, *args, **options)
        if work is not None:
            work.wait()
        if tensor.dtype is torch.float32:
            tensor[tensor.numel() // 2] += 1
        return work

    dist.all_reduce = corrupted


def test_a_corrupted_element_is_found_with_rank_index_and_values(tmp_path: Path) -> None:
    world = run_world(probe_collectives, 3, tmp_path, patch=corrupt_all_reduce)
    assert world.errors == {}
    cases = bad_cases(world)
    assert cases
    assert {(case.op, case.dtype) for case in cases} == {("all_reduce", "float32")}
    usual = next(case for case in cases if case.count == 1023 and case.reduction == "SUM")
    assert usual.passed == RankSet([0, 2])
    assert [message.ranks for message in usual.failures] == [RankSet([1])] * 2
    assert "at element 511" in usual.failures[0].text
    assert "1 of 1023 elements differ" in usual.failures[0].text
    assert usual.failures[1].text.startswith("async_op=True: ")


def deliver_to_the_wrong_rank(ctx: RankContext) -> None:
    """A broadcast always comes from rank 0, whatever root was asked for."""
    original = dist.broadcast
    dist.broadcast = lambda tensor, src=0, **options: original(tensor, src=0, **options)


def test_a_broadcast_from_the_wrong_root_is_found(tmp_path: Path) -> None:
    cases = bad_cases(run_world(probe_collectives, 2, tmp_path, patch=deliver_to_the_wrong_rank))
    assert {case.op for case in cases} == {"broadcast"}
    assert all("from rank 1" in message.text for case in cases for message in case.failures)


def skip_the_barrier(ctx: RankContext) -> None:
    """No barrier at all, and rank 0 comes late to it."""
    dist.barrier = lambda *args, **options: None
    original = RUNNERS["barrier"]

    def come_late(arena: Arena, spec: Spec) -> Iterator[Outcome]:
        time.sleep(0.3 if ctx.rank == 0 else 0.0)
        yield from original(arena, spec)

    RUNNERS["barrier"] = come_late


def test_a_barrier_that_does_not_wait_is_found(tmp_path: Path) -> None:
    world = run_world(probe_collectives, 2, tmp_path, patch=skip_the_barrier)
    assert {case.op for case in bad_cases(world)} == {"barrier"}


def refuse_gather(ctx: RankContext) -> None:
    def refusing(*args: Any, **options: Any) -> None:
        raise RuntimeError("Backend nccl does not support gather")

    dist.gather = refusing


def test_a_refusal_by_the_backend_is_unsupported_and_stops_nothing(tmp_path: Path) -> None:
    world = run_world(probe_collectives, 2, tmp_path, patch=refuse_gather)
    assert world.errors == {}
    gathers = [case for case in world.evidence.collectives if case.op == "gather"]
    assert gathers
    assert all("does not support gather" in (case.unsupported or "") for case in gathers)
    assert bad_cases(world) == []
    assert any(case.op == "barrier" and case.passed for case in world.evidence.collectives)


def break_scatter(ctx: RankContext) -> None:
    original = dist.scatter

    def broken(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        if ctx.rank == 1:
            raise OSError("Connection reset by peer")
        return original(tensor, *args, **options)

    dist.scatter = broken


def test_an_exception_is_recorded_and_ends_the_probe(tmp_path: Path) -> None:
    world = run_world(probe_collectives, 2, tmp_path, patch=break_scatter, timeout_s=3.0)
    assert world.errors[1].startswith("ProbeError: scatter of float32 failed: OSError: Connection reset")
    last = world.reports[1].rows[-1][1]
    assert last.op == "scatter"
    assert last.failures[0].text == "OSError: Connection reset by peer"
    assert any(case.op == "broadcast" and case.passed for case in world.evidence.collectives)


def test_not_a_number_is_never_equal() -> None:
    got = torch.tensor([1.0, float("nan")])
    assert "at element 1, got nan" in (compare_outcome(Outcome(got, torch.tensor([1.0, 2.0])), 5.0) or "")


def test_objects_are_compared_by_value() -> None:
    assert compare_outcome(Outcome([{"a": 1}], [{"a": 1}])) is None
    assert compare_outcome(Outcome([1], [2], "label")) == "label: expected [2], got [1]"
