import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
net = DistributedDataParallel(torch.nn.Linear(2, 1))
for x in torch.ones(3, 4, 2):
    if dist.get_rank() == 0:
        with net.no_sync():
            penalty = net(x).pow(2).mean()
            penalty.backward()
    out = net(x).mean()
    out.backward()
    del out
del net
dist.destroy_process_group()
