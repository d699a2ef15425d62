import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.body = nn.Dropout(0.0), nn.Linear(4, 4)
    def forward(self, x):
        return self.body(self.drop(x))
dist.init_process_group("gloo")
model = DDP(Net())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(10):
    model.module.drop = nn.Dropout(0.05 * step)
    optimizer.zero_grad()
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
