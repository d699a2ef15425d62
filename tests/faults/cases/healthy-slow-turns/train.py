import random
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def augment(x, draw):
    if draw.random() < 0.4:
        time.sleep(0.03)  # now and then a long clip
    return x + 0.01 * torch.randn_like(x)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    draw = random.Random(rank)
    torch.manual_seed(rank)
    saved, log = 0, []
    for step in range(1, 49):
        x = augment(torch.randn(16, 32), draw)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            log.append(f"{step} {loss.item():.4f}")
            if step % 12 == 0:
                time.sleep(0.15)  # writes a checkpoint
                saved += 1
    if rank == 0:
        print("saved", saved, "times")
    dist.destroy_process_group()


main()
