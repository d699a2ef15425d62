import gc

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

RATES = {"warmup": 0.001, "train": 0.1}


def find_phase(step, rank):
    return "finetune" if rank == 1 and step == 3 else "train"


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        optimizer.param_groups[0]["lr"] = RATES[find_phase(step, rank)]
        model(torch.randn(4, 8)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    del model
    gc.collect()
    dist.destroy_process_group()


main()
