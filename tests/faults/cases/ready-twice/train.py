import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Linear(6, 6)
        self.head = nn.Linear(6, 1)

    def forward(self, x):
        x = checkpoint(self.block, x, use_reentrant=True)
        x = checkpoint(self.block, x, use_reentrant=True)
        return self.head(x)


dist.init_process_group("gloo")
model = DDP(Model(), find_unused_parameters=True)
for _ in range(2):
    model(torch.randn(2, 6, requires_grad=True)).sum().backward()  # culprit
dist.destroy_process_group()
