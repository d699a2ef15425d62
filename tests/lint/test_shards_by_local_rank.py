"""Samplers over all ranks that are given the rank in the node."""

from __future__ import annotations

import pytest

from tests.lint.judging import find_marked, lines_of, lint

PROGRAM = """
import os
from torch.utils.data import DataLoader, DistributedSampler
{more}
def build(data, rank, count):
    sampler = DistributedSampler(data, {replicas}, rank={rank})  # here
    return DataLoader(data, 8, sampler=sampler)
def main(data):
    dist.init_process_group({joined})
    local = int(os.environ["LOCAL_RANK"])
    local_rank = local
    build(data, {given}, dist.get_world_size())
    dist.destroy_process_group()
main(read())
"""
USUAL = {
    "replicas": "num_replicas=dist.get_world_size()",
    "rank": "rank",
    "given": "local",
    "more": "",
    "joined": '"nccl"',
}


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"given": "local_rank"},
        {"given": "dist.get_node_local_rank()"},
        {"given": "config.local_rank"},
        {"replicas": "num_replicas=world_size"},
        {"rank": "int(os.environ.get('SLURM_LOCALID', 0))"},
    ],
)
@pytest.mark.wrong
def test_sampler_of_all_ranks_with_the_rank_in_the_node(other: dict[str, str]) -> None:
    program = PROGRAM.format(**USUAL | other)
    assert lines_of(lint(program), "DAT001") == find_marked(program)


@pytest.mark.parametrize(
    "other",
    [
        {"given": "dist.get_rank()"},
        {"given": "int(os.environ['RANK'])"},
        {"replicas": "num_replicas=local_world_size"},
        {"replicas": "num_replicas=count"},
        {"more": "GPUS = torch.cuda.device_count()"},
        {"joined": '"nccl", rank=int(os.environ["LOCAL_RANK"]), world_size=2'},
        {"rank": "rank % count"},
    ],
)
@pytest.mark.right
def test_sampler_of_one_node_or_with_another_rank(other: dict[str, str]) -> None:
    assert not lines_of(lint(PROGRAM.format(**USUAL | other)), "DAT001")
