import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make_sets():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(120, 14, generator=g)
    y = (x[:, :7].sum(1) > x[:, 7:].sum(1)).long()
    return TensorDataset(x[:96], y[:96]), TensorDataset(x[96:], y[96:])


@torch.inference_mode()
def accuracy(model, loader):
    hits = total = 0
    for x, y in loader:
        hits += (model(x).argmax(-1) == y).sum().item()  # culprit
        total += y.numel()
    return hits / total


def main(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(14, 28), nn.ReLU(), nn.Linear(28, 2))
    fully_shard(model[0])
    fully_shard(model)
    train_set, test_set = make_sets()
    sampler = DistributedSampler(train_set, shuffle=True)
    train_loader = DataLoader(train_set, batch_size=8, sampler=sampler)
    test_loader = DataLoader(test_set, batch_size=24)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        dist.barrier()
        if rank == 0:
            model.eval()
            print(f"epoch {epoch}: accuracy {accuracy(model, test_loader):.3f}")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
