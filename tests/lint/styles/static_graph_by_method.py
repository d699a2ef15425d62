import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.body = nn.Linear(4, 4), nn.Linear(4, 4)
    def forward(self, x):
        return checkpoint(self.body, self.stem(x), use_reentrant=True)
dist.init_process_group("gloo")
model = DDP(Net(), find_unused_parameters=True)
model._set_static_graph()
model(torch.randn(2, 4)).sum().backward()
dist.destroy_process_group()
