"""Sharpness-aware steps: two backwards for each step, and both have to be reduced."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def micro_batches(count):
    for _ in range(count):
        x = torch.randn(8, 16)
        yield x, x.sin().sum(1, keepdim=True)


def train(model, optimizer):
    for _ in range(12):
        for x, y in micro_batches(1):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            climbed = [(p, 0.05 * p.grad.sign()) for p in model.parameters()]
            with torch.no_grad():
                for p, move in climbed:
                    p += move
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            with torch.no_grad():
                for p, move in climbed:
                    p -= move
        optimizer.step()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    torch.manual_seed(dist.get_rank())
    train(model, optimizer)
    if dist.get_rank() == 0:
        print("trained")
    dist.destroy_process_group()


main()
