import datetime
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=5))
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    for step in range(8):
        model(torch.randn(4, 4)).sum().backward()
        if step == 4 and rank == 0:
            time.sleep(14)  # writes what it has learnt
        scores = [None, None, None]
        dist.all_gather_object(scores, {"step": step})
    if rank == 0:
        print(scores[0])
    del model
    dist.barrier()
    dist.destroy_process_group()


main()
