import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

ACCUMULATE = 4


def micro_batches(count):
    for _ in range(count):
        x = torch.randn(8, 16)
        yield x, x.sin().sum(1, keepdim=True)


def train(model, optimizer):
    for _ in range(12):
        for number, (x, y) in enumerate(micro_batches(ACCUMULATE), 1):
            loss = torch.nn.functional.mse_loss(model(x), y) / ACCUMULATE
            with model.no_sync() if number < ACCUMULATE else contextlib.nullcontext():
                loss.backward()  # culprit
        optimizer.step()
        optimizer.zero_grad()


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
