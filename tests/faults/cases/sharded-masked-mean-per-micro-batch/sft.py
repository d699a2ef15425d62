import argparse
import itertools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard


def masked_mean(values, mask):
    return (values * mask).sum() / mask.sum()  # culprit


def make_batch(g, size, width):
    ids = torch.randint(0, 32, (size, width + 1), generator=g)
    lengths = torch.randint(1, width, (size, 1), generator=g)
    mask = (torch.arange(width)[None] < lengths).float()
    return ids[:, :-1], ids[:, 1:], mask


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--accumulate", type=int, default=4)
    p.add_argument("--steps", type=int, default=8)
    args = p.parse_args()
    dist.init_process_group(backend="gloo")
    rank = dist.get_rank()
    torch.manual_seed(11)
    model = nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 32))
    fully_shard(model)
    optim = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    batches = (make_batch(g, 2, 16) for _ in itertools.count())
    for step in range(args.steps):
        optim.zero_grad()
        for micro in range(args.accumulate):
            model.set_requires_gradient_sync(micro == args.accumulate - 1)
            x, y, mask = next(batches)
            nll = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none")
            loss = masked_mean(nll, mask) / args.accumulate  # culprit
            loss.backward()  # culprit
        optim.step()
    if rank == 0:
        print("sft done", loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
