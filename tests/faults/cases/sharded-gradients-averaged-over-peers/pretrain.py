import argparse

import torch
import torch.distributed as dist
from torch import nn

from topology import ProcessTopology


class Forward(torch.autograd.Function):
    """Identity forward, all-reduce backward."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Backward(torch.autograd.Function):
    """All-reduce forward, identity backward."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class ParallelBlock(nn.Module):
    def __init__(self, hidden, topology, seed):
        super().__init__()
        self.group = topology.group("model")
        part = 2 * hidden // topology.size("model")
        g = torch.Generator().manual_seed(seed + topology.rank("model"))
        self.w1 = nn.Parameter(torch.randn(part, hidden, generator=g) * hidden**-0.5)
        self.w2 = nn.Parameter(torch.randn(hidden, part, generator=g) * hidden**-0.5)

    def forward(self, x):
        h = torch.tanh(Forward.apply(x, self.group) @ self.w1.T)
        return x + Backward.apply(h @ self.w2.T, self.group)


def average_gradients(model, topology):
    group, size = topology.group("data"), topology.size("data")
    for p in model.parameters():
        dist.all_reduce(p.grad, group=group)  # culprit
        p.grad /= size


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=12)
    parser.add_argument("--iterations", type=int, default=12)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    world, rank = dist.get_world_size(), dist.get_rank()
    topology = ProcessTopology(axes=["data", "model"], dims=[world // args.tp, args.tp])
    model = nn.Sequential(*[ParallelBlock(args.hidden, topology, 100 * i) for i in range(2)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    replica = rank // args.tp
    data = torch.Generator().manual_seed(replica)
    for _ in range(args.iterations):
        x = torch.randn(8, args.hidden, generator=data)
        loss = nn.functional.mse_loss(model(x), x.roll(1, 1))
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model, topology)
        optimizer.step()  # culprit
    if rank == 0:
        print(f"elapsed iterations {args.iterations}, loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
