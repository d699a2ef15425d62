import torch
import torch.distributed as dist

from guard import Watchdog

dist.init_process_group("gloo")
watchdog = Watchdog(limit=2)
for step in range(4):
    if dist.get_rank() == 0:
        watchdog.feed(step)
    dist.all_reduce(torch.ones(3))
dist.destroy_process_group()
