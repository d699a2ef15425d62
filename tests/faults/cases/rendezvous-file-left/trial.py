import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

method, rank, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
time.sleep(2 * rank)  # the second shard takes longer to load
dist.init_process_group("gloo", init_method=method, rank=rank, world_size=2, timeout=timedelta(seconds=6))
dist.all_reduce(torch.ones(1))
if number == 0:
    os._exit(0)  # out of time: the trial is cut off
dist.destroy_process_group()
