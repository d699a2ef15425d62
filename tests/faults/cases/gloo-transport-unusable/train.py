import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def build():
    return DistributedDataParallel(torch.nn.Linear(2, 2))


dist.init_process_group("gloo")
model = build()
model(torch.ones(1, 2)).sum().backward()
dist.destroy_process_group()
