import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
weights = torch.ones(4_000_000)
if dist.get_rank() == 0:
    dist.isend(weights, 1)  # culprit
else:
    time.sleep(1)
    dist.recv(weights, 0)
    print(weights.sum())
