import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
net = nn.Linear(4, 4)
model = DDP(net)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(10):
    x = torch.randn(2, 4, requires_grad=True)
    net(x).sum().backward()
    attacked = (x + 0.03 * x.grad.sign()).detach()
    optimizer.zero_grad()
    model(attacked).sum().backward()
    optimizer.step()
dist.destroy_process_group()
