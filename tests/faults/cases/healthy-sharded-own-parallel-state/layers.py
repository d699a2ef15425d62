import torch
import torch.distributed as dist
from torch import nn

import parallel_state as mpu


class CopyToRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=mpu.tensor_group())
        return grad


class ReduceFromRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        dist.all_reduce(x, group=mpu.tensor_group())
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


def init_shard(rows, columns, dim, seed):
    """All ranks draw the whole weight and keep their part."""
    full = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 0.1
    size, rank = dist.get_world_size(mpu.tensor_group()), dist.get_rank(mpu.tensor_group())
    return nn.Parameter(full.chunk(size, dim)[rank].clone())


class ParallelMLP(nn.Module):
    def __init__(self, hidden, seed):
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.up = init_shard(4 * hidden, hidden, 0, seed)
        self.down = init_shard(hidden, 4 * hidden, 1, seed + 1)

    def forward(self, x):
        h = CopyToRegion.apply(self.norm(x))
        h = nn.functional.gelu(nn.functional.linear(h, self.up))
        return x + ReduceFromRegion.apply(nn.functional.linear(h, self.down))
