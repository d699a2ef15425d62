import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def build(rank):
    model = nn.Linear(16, 4)
    if rank != 0:
        model = DistributedDataParallel(model)  # culprit
    return model


def main():
    dist.init_process_group("gloo")
    model = build(dist.get_rank())
    dist.barrier()
    model(torch.ones(2, 16)).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
