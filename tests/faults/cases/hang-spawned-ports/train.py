import os
import socket
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class Job:
    world_size: int = 2
    steps: int = 10
    lr: float = 0.1
    host: str = "127.0.0.1"


def find_free_port():
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]


def setup(rank, job):
    os.environ["MASTER_ADDR"] = job.host
    os.environ["MASTER_PORT"] = str(find_free_port())  # culprit
    dist.init_process_group("gloo", rank=rank, world_size=job.world_size)  # culprit


def worker(rank, job):
    torch.set_num_threads(1)
    setup(rank, job)
    torch.manual_seed(0)
    model = DDP(nn.Linear(4, 2))
    opt = torch.optim.SGD(model.parameters(), lr=job.lr)
    for step in range(job.steps):
        g = torch.Generator().manual_seed(step * job.world_size + rank)
        x = torch.randn(8, 4, generator=g)
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
        opt.zero_grad()
        loss.backward()
        opt.step()
    if rank == 0:
        print("loss", loss.item())
    dist.destroy_process_group()


def main():
    job = Job()
    mp.spawn(worker, args=(job,), nprocs=job.world_size, join=True)


if __name__ == "__main__":
    main()
