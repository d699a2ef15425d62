import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.nn.functional import all_reduce


class Rows(nn.Module):
    def __init__(self, inner, outer, group):
        super().__init__()
        self.group = group
        self.members, self.place = dist.get_world_size(group), dist.get_rank(group)
        whole = nn.Linear(inner, outer)
        self.weight = nn.Parameter(whole.weight.detach().chunk(self.members, 1)[self.place].clone())
        self.bias = nn.Parameter(whole.bias.detach().clone())

    def forward(self, x):
        return all_reduce(x.chunk(self.members, -1)[self.place] @ self.weight.t(), group=self.group) + self.bias


class Model(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.stem, self.rows, self.head = nn.Linear(10, 32), Rows(32, 32, group), nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.rows(self.stem(x).relu()).relu())


def run():
    dist.init_process_group("gloo")
    replica, place = divmod(dist.get_rank(), 2)
    tensor_group = [dist.new_group([2 * each, 2 * each + 1]) for each in range(2)][replica]
    torch.manual_seed(11)
    model = nn.parallel.DistributedDataParallel(  # culprit
        Model(tensor_group), gradient_as_bucket_view=True
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    draw = torch.Generator().manual_seed(40 + replica)
    for step in range(16):
        x = torch.randn(12, 10, generator=draw)
        loss = F.cross_entropy(model(x), x[:, :4].argmax(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"rank {place} of replica {replica}: {loss.item():.3f}")
    dist.destroy_process_group()


run()
