import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from meters import Meter


def make_batch(step, rank, n=16):
    g = torch.Generator().manual_seed(step * 31 + rank)
    x = torch.randn(n, 10, generator=g)
    return x, x[:, :3].argmax(-1)


def train_steps(model, opt, rank, lo, hi):
    for step in range(lo, hi):
        x, y = make_batch(step, rank)
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        opt.step()


@torch.no_grad()
def accuracy(net, rank):
    meter = Meter("acc")
    for s in range(3):
        x, y = make_batch(10_000 + s, rank, 64)
        meter.update((net(x).argmax(-1) == y).float().sum().item(), len(y))
    return meter.synchronize().avg


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3)))
    opt = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(3):
        train_steps(model, opt, rank, epoch * 5, epoch * 5 + 5)
        if rank == 0:
            print("epoch", epoch, "acc", accuracy(model.module, rank), flush=True)  # culprit
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
