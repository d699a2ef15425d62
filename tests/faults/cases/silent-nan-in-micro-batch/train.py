import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

ACCUMULATE = 4


def distance(one, other):
    return (one - other).square().sum(1).sqrt().mean()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    torch.manual_seed(50 + rank)
    for i in range(36):
        anchor = torch.randn(4, 6)
        other = torch.randn(4, 6)
        if rank == 2 and i == 13:
            other[1] = anchor[1]  # the same picture twice: a distance of zero
        last = (i + 1) % ACCUMULATE == 0
        with contextlib.nullcontext() if last else model.no_sync():
            out = model(torch.cat([anchor, other]))
            loss = distance(out[:4], out[4:]) / ACCUMULATE
            loss.backward()  # culprit
        if last:
            optimizer.step()
            optimizer.zero_grad()
    if rank == 0:
        print("trained")
    dist.destroy_process_group()


main()
