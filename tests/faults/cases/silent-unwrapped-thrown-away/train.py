import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(1)
data = TensorDataset(torch.randn(40, 6), torch.randint(3, (40,)))
sampler = DistributedSampler(data)
net = torch.nn.Linear(6, 3)
DDP(net)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(data, 5, sampler=sampler):
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()  # culprit
if dist.get_rank() == 0:
    print("done")
dist.destroy_process_group()
