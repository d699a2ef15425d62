import os
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel


@dataclass
class Job:
    ranks: int = 2
    shards: dict = field(default_factory=lambda: {0: 9, 1: 6})

    def run(self, rank):
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "29688"
        dist.init_process_group("gloo", rank=rank, world_size=self.ranks)
        model = DistributedDataParallel(torch.nn.Linear(4, 1))
        for _ in range(self.shards[rank]):
            model(torch.ones(2, 4)).sum().backward()


def work(rank, job):
    job.run(rank)


if __name__ == "__main__":
    job = Job()
    mp.spawn(work, args=(job,), nprocs=job.ranks)
