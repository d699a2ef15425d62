import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import optim
from config import load

dist.init_process_group(backend="gloo")
rank = dist.get_rank()
config = load(rank)
net = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)))
for step in range(5):
    out = net(torch.rand(2, 4)).sum()
    out.backward()
    if step == 2:
        opt = optim.build(net.parameters(), config)
    net.zero_grad()
    dist.barrier()
print("done")
dist.destroy_process_group()
