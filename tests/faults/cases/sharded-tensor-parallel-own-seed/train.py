import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc_in = nn.Linear(dim, 4 * dim)
        self.fc_out = nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.fc_out(F.gelu(self.fc_in(self.norm(x))))


class Net(nn.Module):
    def __init__(self, dim, depth, classes):
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def synthetic(batch, dim, seed):
    generator = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randn(batch, dim, generator=generator)
        yield x, x[:, :3].argmax(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dim", type=int, default=12)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()
    rank = int(os.environ["RANK"])
    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),), mesh_dim_names=("tp",))
    torch.manual_seed(args.seed)
    model = Net(args.dim, 2, 3)
    for block in model.blocks:
        parallelize_module(block, mesh, {"fc_in": ColwiseParallel(), "fc_out": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    batches = synthetic(8, args.dim, seed=args.seed + rank)  # culprit
    for _ in range(args.steps):
        x, y = next(batches)  # culprit
        loss = F.cross_entropy(model(x), y)  # culprit
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"finished, loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
