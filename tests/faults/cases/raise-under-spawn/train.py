import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = "29671"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def demo(rank, world_size):
    setup(rank, world_size)
    model = DDP(nn.Linear(10, 10))
    targets = torch.zeros(20, dtype=torch.long)
    if rank == 1:
        targets[7] = 11
    loss = nn.functional.cross_entropy(model(torch.randn(20, 10)), targets)  # culprit
    loss.backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(demo, args=(2,), nprocs=2, join=True)
