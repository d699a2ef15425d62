import os

import torch
import torch.distributed as dist
import torch.nn as nn

EXPERT_PARALLEL = 2


class Topology:
    """Four ranks: expert-parallel groups [0, 1] and [2, 3]; the replicas of an expert are two ranks apart."""

    def __init__(self):
        rank, world = dist.get_rank(), dist.get_world_size()
        for start in range(0, world, EXPERT_PARALLEL):
            members = list(range(start, start + EXPERT_PARALLEL))
            group = dist.new_group(members)
            if rank in members:
                self.expert_parallel = group
        for first in range(EXPERT_PARALLEL):
            members = list(range(first, world, EXPERT_PARALLEL))
            group = dist.new_group(members)
            if rank in members:
                self.expert_data_parallel = group


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        y = torch.empty_like(x)
        dist.all_to_all_single(y, x.contiguous(), group=group)
        return y

    @staticmethod
    def backward(ctx, g):
        y = torch.empty_like(g)
        dist.all_to_all_single(y, g.contiguous(), group=ctx.group)
        return y, None


class MoE(nn.Module):
    def __init__(self, topology, width):
        super().__init__()
        self.topology = topology
        self.router = nn.Linear(width, EXPERT_PARALLEL)
        which = dist.get_rank(topology.expert_parallel)
        with torch.random.fork_rng():
            torch.manual_seed(1000 + which)
            self.expert = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        for p in self.expert.parameters():
            p.is_expert = True

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        copies = torch.stack([x * weights[:, [e]] for e in range(EXPERT_PARALLEL)])
        arrived = Exchange.apply(copies, self.topology.expert_parallel)
        back = Exchange.apply(self.expert(arrived), self.topology.expert_parallel)
        return x + back.sum(0)


def reduce_gradients(model, topology):
    for p in model.parameters():
        group = topology.expert_data_parallel if getattr(p, "is_expert", False) else None
        dist.all_reduce(p.grad, group=group)
        p.grad /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    topology = Topology()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), MoE(topology, 16), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    g = torch.Generator().manual_seed(int(os.environ["RANK"]))
    for step in range(10):
        x = torch.randn(16, 8, generator=g)
        loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        reduce_gradients(model, topology)
        optimizer.step()
    if dist.get_rank() == 0:
        print("ten steps", loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
