import os

import torch
import torch.distributed as dist
from torch import nn

GLOBAL_BATCH = 32


def sync(model):
    if not dist.is_initialized():
        return
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)  # culprit
    offset = 0
    for p in model.parameters():
        p.grad.copy_(flat[offset : offset + p.numel()].view_as(p))
        offset += p.numel()


def main():
    world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    stream = torch.Generator().manual_seed(1)
    for step in range(12):
        x = torch.randn(GLOBAL_BATCH, 8, generator=stream)
        part = x.chunk(world)[rank]
        loss = (model(part) - part.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        sync(model)
        optimizer.step()
    if rank == 0:
        print("loss", loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
