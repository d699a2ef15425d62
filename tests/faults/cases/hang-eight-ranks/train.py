import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def setup(rank, world):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29732")
    dist.init_process_group("gloo", rank=rank, world_size=world)


def worker(rank, world):
    setup(rank, world)
    gradient = torch.ones(16)
    for step in range(10):
        dist.all_reduce(gradient)
        if step == 6 and rank == 5:
            dist.barrier()  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(8,), nprocs=8)
