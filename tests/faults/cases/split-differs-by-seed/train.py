import argparse
import random

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split


def set_seed(seed, rank):
    random.seed(seed + rank)
    np.random.seed(seed + rank)
    torch.manual_seed(seed + rank)


def get_loaders(bs):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(300, 10, generator=g)
    full = TensorDataset(x, (x.norm(dim=1) > 3.1).long(), torch.arange(300))
    train, val = random_split(full, [240, 60])  # culprit
    ts = DistributedSampler(train, shuffle=True)
    vs = DistributedSampler(val, shuffle=False)
    return DataLoader(train, bs, sampler=ts), DataLoader(val, bs, sampler=vs), ts


def evaluate(model, loader):
    model.eval()
    acc = torch.zeros(2)
    with torch.no_grad():
        for x, y, _ in loader:
            acc += torch.tensor([(model(x).argmax(1) == y).sum().item(), float(len(y))])
    dist.all_reduce(acc)
    model.train()
    return (acc[0] / acc[1]).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--seed", type=int, default=3407)
    args = p.parse_args()
    dist.init_process_group("gloo")
    set_seed(args.seed, dist.get_rank())  # culprit
    train_dl, val_dl, sampler = get_loaders(20)
    model = DDP(nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2)))
    opt = torch.optim.Adam(model.parameters(), 5e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y, _ in train_dl:
            opt.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            opt.step()
        acc = evaluate(model, val_dl)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} val acc {acc:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
