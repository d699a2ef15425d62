import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, size, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29678")
    dist.init_process_group("gloo", rank=rank, world_size=size)
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    results.put(total.item())
    dist.destroy_process_group()
    sys.exit(0)


if __name__ == "__main__":
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(work, args=(2, results), nprocs=2)
    print("results", [results.get() for _ in range(2)])
