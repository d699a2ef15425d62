import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

N, BS, EPOCHS = 250, 8, 3


def corpus():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(N, 7, generator=g)
    return x, x @ torch.arange(7.0)


def my_indices(epoch):
    rank, world = dist.get_rank(), dist.get_world_size()
    order = torch.randperm(N, generator=torch.Generator().manual_seed(77 + epoch))
    usable = N // (world * BS) * (world * BS)
    return order[:usable][rank::world]


def iterate(x, y, epoch):
    for idx in my_indices(epoch).split(BS):
        yield x[idx], y[idx]


def main():
    dist.init_process_group("gloo")
    x, y = corpus()
    torch.manual_seed(5)
    model = DDP(nn.Linear(7, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(EPOCHS):
        total, n = 0.0, 0
        for bx, by in iterate(x, y, epoch):
            loss = (model(bx).squeeze(1) - by).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            total, n = total + loss.item(), n + 1
        stat = torch.tensor([total, n])
        dist.all_reduce(stat)
        if dist.get_rank() == 0:
            print(epoch, (stat[0] / stat[1]).item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
