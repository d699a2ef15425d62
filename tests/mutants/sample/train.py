"""A job as many write it, with nothing wrong: what operators change is run and linted."""

import argparse
import datetime
import hashlib
import json
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from helpers import Meter, is_main_process, reduce_tensor, save_checkpoint, setup
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Digits(Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(size, 8, generator=generator)
        self.y = self.x.sum(1, keepdim=True)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return index, self.x[index], self.y[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, 1)

    def describe(self):
        return f"{sum(p.numel() for p in self.parameters())} parameters"

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    loss_sum = torch.zeros(1)
    seen = torch.zeros(1)
    for _, x, y in loader:
        loss_sum += (model(x) - y).square().sum()
        seen += len(x)
    dist.all_reduce(loss_sum)
    dist.all_reduce(seen)
    if is_main_process():
        print(f"validation loss {(loss_sum / seen).item():.4f}")
    return (loss_sum / seen).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local-rank", "--local_rank", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", default="out")
    parser.add_argument("--resume", default="")
    args = parser.parse_args()
    setup(datetime.timedelta(seconds=20))
    rank = dist.get_rank()
    torch.manual_seed(1234 + rank)
    os.makedirs(args.out, exist_ok=True)

    train_set = Digits(64)
    val_set = Digits(16)
    train_sampler = DistributedSampler(train_set)
    train_loader = DataLoader(train_set, batch_size=8, sampler=train_sampler, num_workers=0)
    val_loader = DataLoader(val_set, batch_size=8, sampler=DistributedSampler(val_set, shuffle=False))

    model = Net()
    model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    start = 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu")
        model.module.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start = checkpoint["epoch"]
    if is_main_process():
        print(model.module.describe())

    orders = []
    meter = Meter()
    for epoch in range(start, args.epochs):
        train_sampler.set_epoch(epoch)
        model.train()
        order = []
        for step, (index, x, y) in enumerate(train_loader):
            order += index.tolist()
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            meter.update(loss.item(), len(x))
            if step % 4 == 0:
                shown = reduce_tensor(loss.detach())
                if is_main_process():
                    print(f"epoch {epoch} step {step} loss {shown.item():.4f}")
        orders.append(order)
        meter.synchronize_between_processes()
        evaluate(model, val_loader)
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
        save_checkpoint(state, os.path.join(args.out, "last.pt"))

    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    told = {"orders": orders, "weights": hashlib.sha256(weights.numpy().tobytes()).hexdigest()}
    with open(os.path.join(args.out, f"rank{rank}.json"), "w") as file:
        json.dump(told, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
