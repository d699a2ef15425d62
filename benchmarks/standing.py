"""Three ranks that stop getting on, in the way that the argument names; for `hanging`."""

from __future__ import annotations

import sys
import time


def main(kind: str) -> None:
    """Take a few steps, then hang."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    for _ in range(6 if kind == "uneven" and rank == 1 else 5):
        model(torch.randn(4, 8)).sum().backward()
        time.sleep(0.05)
    if kind == "branch" and rank == 0:
        dist.all_reduce(torch.zeros(1))
    if kind == "receive" and rank == 2:
        dist.recv(torch.zeros(1), src=1)
    if kind == "stall" and rank == 1:
        time.sleep(3600)
    dist.barrier()


if __name__ == "__main__":
    main(sys.argv[1])
