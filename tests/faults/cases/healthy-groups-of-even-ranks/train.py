import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def make_groups(world):
    evens = dist.new_group(list(range(0, world, 2)))
    odds = dist.new_group(list(range(1, world, 2)))
    return evens, odds


def task_batch(step, rank):
    g = torch.Generator().manual_seed(step * 4 + rank)
    x = torch.randn(12, 6, generator=g)
    target = x[:, :1] if rank % 2 == 0 else x[:, 1:2] ** 2
    return x, target


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    evens, odds = make_groups(world)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)))
    opt = torch.optim.Adam(model.parameters(), 5e-3)
    for step in range(20):
        x, t = task_batch(step, rank)
        loss = nn.functional.smooth_l1_loss(model(x), t)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank % 2 == 0 and step % 5 == 0:
            m = loss.detach().clone()
            dist.all_reduce(m, group=evens)
            if rank == 0:
                print("even-task loss", step, m.item() / 2)
        elif rank % 2 == 1 and step % 10 == 0:
            m = loss.detach().clone()
            dist.reduce(m, dst=1, group=odds)
            if rank == 1:
                print("odd-task loss", step, m.item() / 2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
