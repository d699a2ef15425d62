import argparse
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_to_all_single


def build_dispatch(index, experts, capacity):
    one_hot = nn.functional.one_hot(index, experts)
    place = (one_hot.cumsum(0) * one_hot).sum(1) - 1
    keep = place < capacity
    slots = torch.zeros(len(index), experts, capacity)
    slots[keep, index[keep], place[keep]] = 1.0
    return slots


class CapacityMoE(nn.Module):
    def __init__(self, dim, factor, group):
        super().__init__()
        self.group, self.world, self.factor = group, dist.get_world_size(group), factor
        self.gate = nn.Linear(dim, self.world)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        generator = torch.Generator().manual_seed(dist.get_rank(group))
        for linear in (self.up, self.down):
            linear.weight.data.normal_(0, 0.1, generator=generator)

    def forward(self, x):
        probabilities = self.gate(x).softmax(-1)
        weight, index = probabilities.max(-1)
        capacity = math.ceil(self.factor * len(x) / self.world)
        slots = build_dispatch(index, self.world, capacity)
        packed = torch.einsum("tec,td->ecd", slots, x).reshape(self.world * capacity, -1)
        received = all_to_all_single(torch.empty_like(packed), packed, group=self.group)
        done = self.down(torch.relu(self.up(received)))
        returned = all_to_all_single(torch.empty_like(done), done, group=self.group)
        returned = returned.view(self.world, capacity, -1)
        return x + weight.unsqueeze(1) * torch.einsum("tec,ecd->td", slots, returned)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--capacity-factor", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    dist.init_process_group(backend="gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(21)
    dense = nn.Linear(6, 12)
    moe = CapacityMoE(12, args.capacity_factor, dist.group.WORLD)
    head = nn.Linear(12, 1)
    shared = [*dense.parameters(), *moe.gate.parameters(), *head.parameters()]
    experts = [*moe.up.parameters(), *moe.down.parameters()]
    optimizer = torch.optim.SGD(shared + experts, lr=0.05)
    data = torch.Generator().manual_seed(rank)
    for _ in range(args.steps):
        x = torch.randn(16, 6, generator=data)
        loss = (head(moe(torch.tanh(dense(x)))) - x.norm(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in shared])
        dist.all_reduce(flat)
        offset = 0
        for p in shared:
            p.grad.copy_(flat[offset : offset + p.numel()].view_as(p) / world)
            offset += p.numel()
        for p in experts:
            p.grad.div_(world)
        optimizer.step()
    dist.all_reduce(loss.detach_())
    if rank == 0:
        print(f"trained, loss {loss.item() / world:.3f}")
    dist.destroy_process_group()


main()
