import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def evaluate(model):
    model.eval()
    for _ in range(40):
        model(torch.ones(16, 8))
        time.sleep(0.2)
    model.train()


def train(epochs=2):
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
    for epoch in range(epochs):
        for _ in range(3):
            model(torch.randn(4, 8)).sum().backward()
        if rank == 0:
            evaluate(model.module)
            print("epoch", epoch)
        dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.barrier()
    dist.destroy_process_group()
