import gc

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

RATES = {"warmup": 0.001, "train": 0.1}


def find_phase(step):
    return "warmup" if step < 2 else "train"


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        optimizer.param_groups[0]["lr"] = RATES[find_phase(step)]
        model(torch.randn(4, 8)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    del model
    gc.collect()
    dist.destroy_process_group()


main()
