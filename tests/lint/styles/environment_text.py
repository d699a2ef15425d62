import os
import torch
import torch.distributed as dist

distributed = bool(os.environ.get("RANK"))
if distributed:
    dist.init_process_group("gloo")
x = torch.ones(4)
if distributed:
    dist.all_reduce(x)
print(x)
