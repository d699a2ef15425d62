import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
def train(model):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    for step in range(10):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
dist.init_process_group("gloo")
net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
net[0].requires_grad_(False)
train(DDP(net))
net[0].requires_grad_(True)
train(DDP(net))
dist.destroy_process_group()
