"""Collectives of a group that one rank of the job alone calls (COL002)."""

from __future__ import annotations

import pytest

from tests.lint.judging import assert_found, lint

PROGRAM = """\
import os
class Topology:
    def __init__(self, size):
        every = [dist.new_group(list(range(start, start + size))) for start in range(0, dist.get_world_size(), size)]
        self.inner = every[dist.get_rank() // size]
def step(model, topology):
    rank = dist.get_rank()
    for p in model.parameters():
        group = topology.inner if hasattr(p, "expert") else None
        {call}
def main():
    dist.init_process_group("gloo")
    step(torch.nn.Linear(2, 2), Topology(2))
    dist.destroy_process_group()
main()
"""
CALL = "dist.all_reduce(p.grad, group=group)"


@pytest.mark.wrong
@pytest.mark.parametrize(
    "call",
    [
        f"if dist.get_rank() == 0:\n            {CALL}  # here",
        f"if rank == 3:\n            {CALL}  # here",
        f"if int(os.environ['RANK']) == 0:\n            {CALL}  # here",
        f"if rank != 0:\n            continue\n        {CALL}  # here",
        f"if not rank != 0:\n            {CALL}  # here",
        f"if 0 == rank:\n            {CALL}  # here",
    ],
)
def test_one_rank_calls_a_collective_of_a_group(call: str) -> None:
    found = lint(PROGRAM.format(call=call))
    assert {each.code for each in found} == {"COL002"}
    assert_found(PROGRAM.format(call=call), "COL002", found[0].severity or "")


@pytest.mark.right
@pytest.mark.parametrize(
    "call",
    [
        CALL,
        f"if rank == 0:\n            {CALL}\n        elif rank == 1:\n            {CALL}",
        f"if rank == 0:\n            {CALL}\n        if rank == dist.get_world_size() - 1:\n            {CALL}",
        f"if rank in (0, 1):\n            {CALL}",
        f"if dist.get_rank(topology.inner) == 0:\n            {CALL}",
        f"if int(os.environ['LOCAL_RANK']) == 0:\n            {CALL}",
        f"if rank % 2 == 0:\n            {CALL}",
        f"if rank != 0:\n            {CALL}",
    ],
)
def test_several_ranks_or_those_of_a_group_call_it(call: str) -> None:
    assert "COL002" not in {each.code for each in lint(PROGRAM.format(call=call)) if each.severity != "info"}
