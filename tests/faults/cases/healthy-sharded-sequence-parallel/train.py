import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class GatherSequence(torch.autograd.Function):
    """All-gather along the sequence; the backward is a reduce-scatter."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=0)

    @staticmethod
    def backward(ctx, grad):
        return scatter_sum(grad)


class ScatterSequence(torch.autograd.Function):
    """Reduce-scatter along the sequence; the backward is an all-gather."""

    @staticmethod
    def forward(ctx, x):
        return scatter_sum(x)

    @staticmethod
    def backward(ctx, grad):
        parts = [torch.empty_like(grad) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, grad.contiguous())
        return torch.cat(parts, dim=0)


def scatter_sum(x):
    out = torch.empty_like(x.chunk(dist.get_world_size(), dim=0)[0])
    dist.reduce_scatter_tensor(out, x.contiguous())
    return out


class Layer(nn.Module):
    def __init__(self, dim, number):
        super().__init__()
        world, rank = dist.get_world_size(), dist.get_rank()
        self.norm = nn.LayerNorm(dim)
        self.norm.weight.sequence_parallel = self.norm.bias.sequence_parallel = True
        g = torch.Generator().manual_seed(100 * number + rank)
        self.first = nn.Parameter(torch.randn(2 * dim // world, dim, generator=g) * 0.2)
        self.second = nn.Parameter(torch.randn(dim, 2 * dim // world, generator=g) * 0.2)

    def forward(self, x):
        h = GatherSequence.apply(self.norm(x))
        h = F.linear(torch.relu(F.linear(h, self.first)), self.second)
        return x + ScatterSequence.apply(h)


def finish_gradients(model):
    """Parameters that saw only a part of the sequence have a part of the gradient."""
    for p in model.parameters():
        if getattr(p, "sequence_parallel", False):
            dist.all_reduce(p.grad)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = nn.Sequential(Layer(8, 0), Layer(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    data = torch.Generator().manual_seed(4)
    for step in range(10):
        sequence = torch.randn(12, 3, 8, generator=data)
        x = sequence.chunk(world)[rank]
        y = sequence.roll(1, dims=-1).chunk(world)[rank]
        loss = (model(x) - y).square().sum() / sequence.numel()
        optimizer.zero_grad()
        loss.backward()
        finish_gradients(model)
        optimizer.step()
    mine = model[0].norm.weight.detach()
    other = mine.clone()
    dist.broadcast(other, src=0)
    assert torch.equal(mine, other)
    if rank == 0:
        print("norms agree")
    dist.destroy_process_group()
