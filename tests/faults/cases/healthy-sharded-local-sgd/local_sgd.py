import torch
import torch.distributed as dist
from torch import nn


@torch.no_grad()
def average_parameters(model):
    world = dist.get_world_size()
    flat = torch.cat([p.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= world
    torch.nn.utils.vector_to_parameters(flat, model.parameters())


@torch.no_grad()
def spread(model):
    flat = torch.nn.utils.parameters_to_vector(model.parameters())
    low, high = flat.clone(), flat.clone()
    dist.all_reduce(low, op=dist.ReduceOp.MIN)
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    return (high - low).max().item()


def main(sync_every=4, steps=24):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 10), nn.Tanh(), nn.Linear(10, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(31 + rank)
    for step in range(1, steps + 1):
        x = torch.randn(16, 10, generator=g)
        target = (x[:, 0] * x[:, 1] > 0).long()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()
        if step % sync_every == 0:
            average_parameters(model)
    difference = spread(model)
    if rank == 0:
        print("spread", difference)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
