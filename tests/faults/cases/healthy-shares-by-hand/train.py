"""Fits a line to readings; each process takes its own part of them."""

import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset


def load_readings(count):
    source = np.random.default_rng(11)
    inputs = source.normal(size=(count, 6)).astype("float32")
    targets = inputs.sum(axis=1, keepdims=True) + source.normal(scale=0.1, size=(count, 1)).astype("float32")
    return TensorDataset(torch.from_numpy(inputs), torch.from_numpy(targets))


def own_part(readings, rank, world_size):
    order = np.random.default_rng(0).permutation(len(readings))
    size = len(order) // world_size
    return Subset(readings, order[rank * size : (rank + 1) * size].tolist())


def run(options):
    dist.init_process_group("gloo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    loader = DataLoader(own_part(load_readings(options.readings), rank, world_size), batch_size=10, shuffle=True)
    model = DDP(torch.nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(options.epochs):
        total = torch.zeros(2)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            total += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch}: loss {total[0] / total[1]:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--readings", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=2)
    run(parser.parse_args())
