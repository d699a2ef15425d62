import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def setup(rank, world, meeting):
    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=world)


def worker(rank, world, meeting):
    setup(rank, world, meeting)
    gradient = torch.ones(16)
    for step in range(10):
        dist.all_reduce(gradient)
        if step == 6 and rank == 5:
            dist.barrier()  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, args=(8, os.path.join(folder, "meeting")), nprocs=8)
