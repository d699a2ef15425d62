import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def make_net():
    return nn.Sequential(nn.Linear(10, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 5))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(make_net())
    teacher = copy.deepcopy(model.module)
    scorer = nn.Linear(5, 1)  # built apart, then made alike
    for tensor in scorer.state_dict().values():
        dist.broadcast(tensor, src=0)
    shown = make_net() if rank == 0 else None  # a copy that only rank 0 looks at
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(24):
        x = torch.randn(16, 10)
        teacher.train()
        with torch.no_grad():
            target = teacher(x)
        out = model(x)
        loss = (out - target).square().mean() + scorer(out).square().mean() * 1e-3
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mean, new in zip(teacher.parameters(), model.module.parameters()):
                mean.lerp_(new, 0.01)
            if shown is not None:
                shown(x)
    if rank == 0:
        print("done")
    dist.destroy_process_group()


main()
