import argparse

import torch
import torch.distributed as dist
from torch import nn


@torch.no_grad()
def average_state(net, opt):
    w = dist.get_world_size()
    tensors = [p.data for p in net.parameters()]
    tensors += [s["momentum_buffer"] for s in opt.state.values() if s.get("momentum_buffer") is not None]
    for t in tensors:
        dist.all_reduce(t)
        t.div_(w)


def stream(rank, world, steps):
    for s in range(steps):
        g = torch.Generator().manual_seed(s * world + rank)
        x = torch.randn(16, 8, generator=g)
        yield s, x, (x[:, :2].sum(1) > 0).long()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--sync-every", type=int, default=4)
    p.add_argument("--steps", type=int, default=22)
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for s, x, y in stream(rank, world, a.steps):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        if (s + 1) % a.sync_every == 0:
            average_state(net, opt)
    average_state(net, opt)
    if rank == 0:
        print("final local loss", loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
