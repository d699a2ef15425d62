"""Forward passes that no backward pass followed, and gradients that a program reduces by its own collectives."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.watch.injecting import torchrun

PASSES = """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    for step in range(6):
        out = model(torch.randn(3, 4))
        if step in (2, 3):
            continue
        out.sum().backward()
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(3, 4))
    views = model(torch.randn(3, 4)) + model(torch.randn(3, 4))
    views.sum().backward()
    dist.destroy_process_group()
"""
BY_HAND = """
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(rank)
    for step in range(4):
        model(torch.randn(3, 4, generator=generator)).square().mean().backward()
        flat = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
        dist.all_reduce(flat)
        flat /= world * world
        for p, part in zip(model.parameters(), flat.split([8, 2])):
            p.grad.copy_(part.view_as(p))
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""


def test_forward_passes_from_one_line_without_a_backward_pass_are_counted(tmp_path: Path) -> None:
    done = torchrun(tmp_path, PASSES)
    assert done.returncode == 0, done.stderr
    line = next(n for n, text in enumerate(PASSES.splitlines(), 1) if "out = model" in text)
    for rank in done.ranks():
        assert [each["count"] for each in rank.all("unfollowed")] == [1, 2]
        assert {each["frames"][0][1] for each in rank.all("unfollowed")} == {line}


def test_elements_are_read_before_and_behind_a_reduction_by_hand(tmp_path: Path) -> None:
    done = torchrun(tmp_path, BY_HAND)
    assert done.returncode == 0, done.stderr
    steps = [{each["step"]: each for each in rank.all("step")} for rank in done.ranks()]
    assert all("reduced" not in each[1] for each in steps)  # what is carried is known from the first look on
    line = next(n for n, text in enumerate(BY_HAND.splitlines(), 1) if "all_reduce" in text)
    for step in (2, 4):
        one, other = (each[step] for each in steps)
        sums = [(a + b) / 4 for a, b in zip(one["unreduced"], other["unreduced"], strict=True)]
        assert one["reduced"] == other["reduced"] == pytest.approx(sums, rel=1e-5)
        assert len(sums) == 6  # four of the weight, both of the bias
        assert one["reduced_at"][0][1] == line


PLATEAU = """
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for step in range(4):
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
        scheduler.step(-step if dist.get_rank() else step)
    dist.destroy_process_group()
"""


def test_steps_after_which_a_metric_lowers_the_learning_rate(tmp_path: Path) -> None:
    done = torchrun(tmp_path, PLATEAU)
    assert done.returncode == 0, done.stderr
    last = [rank.all("step")[-1] for rank in done.ranks()]
    assert [each.get("lowered") for each in last] == [[2, 3, 4], None]
    line = next(n for n, text in enumerate(PLATEAU.splitlines(), 1) if "scheduler.step" in text)
    assert last[0]["lowered_at"][0][1] == line
