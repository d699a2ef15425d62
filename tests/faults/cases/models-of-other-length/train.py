import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from adapters import add_adapter

dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
if dist.get_rank() == 2:
    add_adapter(model)
model = DDP(model)  # culprit
model(torch.randn(2, 4)).sum().backward()
dist.destroy_process_group()
