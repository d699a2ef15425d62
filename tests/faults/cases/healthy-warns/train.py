import logging
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Old:
    def __init__(self):
        warnings.warn("Old is deprecated and will be removed", FutureWarning, stacklevel=2)


def main():
    logging.basicConfig(level=logging.WARNING)
    dist.init_process_group("gloo")
    Old()
    warnings.warn("lr_scheduler.step() before optimizer.step(): error in the order", UserWarning, stacklevel=1)
    logging.error("ERROR: validation loss is worse than before, FATAL for the paper")
    model = DDP(nn.Linear(3, 1), find_unused_parameters=True)
    for _ in range(3):
        model(torch.randn(2, 3)).sum().backward()
    dist.barrier()
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
