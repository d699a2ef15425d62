import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

ACCUMULATE = 3


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        for i, (x, y) in enumerate(batches):
            last = (i + 1) % ACCUMULATE == 0 or i + 1 == len(batches)
            with contextlib.nullcontext() if last else model.no_sync():
                loss = (model(x) - y).square().mean() / ACCUMULATE
                loss.backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()


def main():
    dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(dist.get_rank())
    batches = [(torch.randn(4, 6, generator=generator), torch.randn(4, 1, generator=generator)) for _ in range(11)]
    train(DDP(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))), batches)
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
