import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def save_checkpoint(folder, model, optimizer, epoch):
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    optimizer.consolidate_state_dict()  # culprit
    state = {"epoch": epoch, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, folder / f"epoch{epoch}.pth")


def train_epoch(model, optimizer, generator):
    model.train()
    for _ in range(6):
        images = torch.randn(4, 3, 8, 8, generator=generator)
        labels = images.mean((1, 2, 3)).gt(0).long()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="out")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    master_process = int(os.environ["RANK"]) == 0
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 2)
    )
    model = DistributedDataParallel(net)
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for epoch in range(args.epochs):
        train_epoch(model, optimizer, generator)
        if master_process:
            save_checkpoint(args.out, model, optimizer, epoch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
