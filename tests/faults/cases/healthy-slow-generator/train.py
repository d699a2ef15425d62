import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def stream(rank):
    """Messages come when they come."""
    for index in range(6):
        time.sleep(6 if (rank, index) in ((0, 2), (1, 4)) else 0.2)
        yield torch.full((2, 4), float(index))


def main():
    dist.init_process_group("gloo")
    model = DDP(nn.Linear(4, 1))
    for batch in stream(dist.get_rank()):
        model(batch).mean().backward()
    if dist.get_rank() == 1:
        print("stream ended")
    del model
    dist.barrier()
    dist.destroy_process_group()


main()
