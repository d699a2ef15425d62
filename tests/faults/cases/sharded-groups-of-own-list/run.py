import os

import torch
import torch.distributed as dist
from torch import nn

TP = 2


def setup():
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    first = rank // TP * TP
    tp_group = dist.new_group(list(range(first, first + TP)))  # culprit
    dp_group = dist.new_group(list(range(rank % TP, world, TP)))  # culprit
    return tp_group, dp_group


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        y = x.clone()
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class RowParallel(nn.Module):
    def __init__(self, wide, out, group):
        super().__init__()
        self.group = group
        self.inner = nn.Linear(wide // TP, out, bias=False)

    def forward(self, x):
        mine = x.chunk(TP, dim=1)[dist.get_rank(self.group)]
        return Sum.apply(self.inner(mine), self.group)


def train(tp_group, dp_group):
    torch.manual_seed(dist.get_rank(tp_group))
    model = RowParallel(16, 4, tp_group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(dist.get_rank(dp_group))
    for step in range(20):
        x = torch.randn(8, 16, generator=data)
        loss = (model(x) - x[:, :4]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=dp_group)
        optimizer.step()
    return loss.item()


if __name__ == "__main__":
    groups = setup()
    print("loss", train(*groups))
    dist.destroy_process_group()
