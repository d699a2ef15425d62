"""Rank 2 waits in a broadcast, the others in an all_reduce: none of them can go on."""

import os
from pathlib import Path

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.barrier()
    Path(os.environ["OUT"], f"ready-{rank}").touch()
    if rank == 2:
        dist.broadcast(torch.ones(1), src=0)  # alone
    else:
        dist.all_reduce(torch.ones(1))  # together


if __name__ == "__main__":
    main()
