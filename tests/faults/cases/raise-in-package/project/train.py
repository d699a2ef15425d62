import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from .models import Net


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=8)
    size = parser.parse_args().size
    dist.init_process_group("gloo")
    model = DDP(Net(size))
    for step in range(4):
        width = size + 1 if step == 2 and dist.get_rank() == 1 else size
        model(torch.randn(2, width)).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
