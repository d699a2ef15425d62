from __future__ import annotations

import gc
import weakref
from pathlib import Path

import torch
import torch.distributed as dist

from ddpdoctor.launch.context import RankContext
from ddpdoctor.launch.probes.groups import leave_group
from tests.launch.worlds import run_world


def leave_both(ctx: RankContext) -> list[bool]:
    """Leave a group and then all, each right after a collective; return what is left of them."""
    second = dist.new_group([0, 1])
    third = dist.new_group([0, 1])
    objects = [weakref.ref(each) for each in (second, third, dist.group.WORLD)]
    for _ in range(20):
        dist.all_reduce(torch.ones(1000), group=second)
    leave_group(second)
    dist.all_reduce(torch.ones(1000), group=third)
    dist.all_reduce(torch.ones(1000))
    leave_group()
    del second, third
    gc.collect()
    return [*(each() is not None for each in objects), dist.is_initialized()]


def test_groups_that_are_left_are_not_destroyed(tmp_path: Path) -> None:
    world = run_world(leave_both, 2, tmp_path)
    assert world.errors == {}
    assert [report.result for report in world.reports] == [[True, True, True, False]] * 2
