import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.parallel import DistributedDataParallel


class SplitLinear(nn.Module):
    """Rows of a weight on the ranks of a group; each adds what it has of the output."""

    def __init__(self, width, group):
        super().__init__()
        self.group, size = group, dist.get_world_size(group)
        whole = torch.randn(width, width) / width**0.5  # the same on all ranks
        self.part = nn.Parameter(whole.chunk(size, 1)[dist.get_rank(group)].contiguous())

    def forward(self, x):
        own = x.chunk(dist.get_world_size(self.group), 1)[dist.get_rank(self.group)]
        return all_reduce(own @ self.part.t(), group=self.group)


dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
data = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
torch.manual_seed(5)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), SplitLinear(16, tensor), nn.Linear(16, 1))
model = DistributedDataParallel(net, process_group=data)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
samples = torch.utils.data.TensorDataset(torch.randn(96, 8))
sampler = torch.utils.data.DistributedSampler(samples, 2, rank // 2)
for (x,) in torch.utils.data.DataLoader(samples, 8, sampler=sampler):
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    for each in (net[0].weight, net[0].bias):  # each rank has the part that came through its columns
        dist.all_reduce(each.grad, group=tensor)
        each.grad.div_(2)
    optimizer.step()
print("trained", rank)
dist.destroy_process_group()
