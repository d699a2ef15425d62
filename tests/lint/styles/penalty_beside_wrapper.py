import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
    def forward(self, x):
        return self.body(x)
    def penalty(self):
        return self.body.weight.square().sum()
dist.init_process_group("gloo")
net = Net()
model = DDP(net)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(10):
    optimizer.zero_grad()
    model(torch.randn(2, 4)).sum().backward()
    net.penalty().backward()
    optimizer.step()
dist.destroy_process_group()
