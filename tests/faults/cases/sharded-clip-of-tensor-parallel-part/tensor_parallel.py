import torch
import torch.distributed as dist
from torch import nn


class Groups:
    def __init__(self, tensor_size):
        rank, world = dist.get_rank(), dist.get_world_size()
        self.data_rank, self.tensor_rank = divmod(rank, tensor_size)
        self.tensor_size, self.data_size = tensor_size, world // tensor_size
        self.tensor, _ = dist.new_subgroups_by_enumeration(
            [list(range(i, i + tensor_size)) for i in range(0, world, tensor_size)]
        )
        self.data, _ = dist.new_subgroups_by_enumeration(
            [list(range(i, world, tensor_size)) for i in range(tensor_size)]
        )


class SumForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class SumBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class MLP(nn.Module):
    def __init__(self, dim, groups):
        super().__init__()
        self.groups = groups
        self.norm = nn.LayerNorm(dim)
        seed = torch.Generator().manual_seed(groups.tensor_rank)
        wide = 4 * dim // groups.tensor_size
        self.first = nn.Parameter(torch.randn(wide, dim, generator=seed) / dim**0.5)
        self.second = nn.Parameter(torch.randn(dim, wide, generator=seed) / dim**0.5)

    def forward(self, x):
        h = SumBackward.apply(self.norm(x), self.groups.tensor)
        return SumForward.apply(torch.relu(h @ self.first.T) @ self.second.T, self.groups.tensor)
