import sys
import traceback

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def decode(step, rank):
    if step % 3 == rank:
        raise ValueError(f"cannot decode sample {step}")
    return torch.randn(2, 4)


def main():
    dist.init_process_group("gloo")
    model = DDP(nn.Linear(4, 1))
    for step in range(6):
        try:
            batch = decode(step, dist.get_rank())
        except ValueError:
            traceback.print_exc(file=sys.stderr)
            batch = torch.zeros(2, 4)
        model(batch).sum().backward()
    dist.barrier()
    del model
    dist.destroy_process_group()
    print("finished")


if __name__ == "__main__":
    main()
