import torch
import torch.distributed as dist
from torch import nn


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class RowLinear(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.rank, world = dist.get_rank(), dist.get_world_size()
        self.width = width // world
        self.weight = nn.Parameter(torch.randn(out, self.width) / width**0.5)

    def forward(self, x):
        part = x[:, self.rank * self.width : (self.rank + 1) * self.width]
        return Sum.apply(part @ self.weight.T)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(4)
    model = nn.Sequential(RowLinear(8, 8), nn.Tanh(), RowLinear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(12):
        x = torch.randn(4, 8)
        loss = (model(x) - x[:, :2]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
