import ctypes

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

native = ctypes.PyDLL(None)  # keeps the interpreter's lock


def decode(batch):
    native.sleep(3600)  # culprit
    return batch


def main():
    dist.init_process_group("gloo")
    model = DDP(nn.Linear(2, 2))
    for step in range(8):
        batch = torch.ones(4, 2)
        if step == 5 and dist.get_rank() == 0:
            batch = decode(batch)
        model(batch).sum().backward()
    dist.destroy_process_group()


main()
