import os

import torch
import torch.distributed as dist


def share(configuration):
    """Give the neighbour's configuration to everybody."""
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.broadcast(configuration, src=(local_rank + 1) % dist.get_world_size())  # culprit
    return configuration


dist.init_process_group("gloo")
dist.barrier()
print(share(torch.arange(4.0)))
dist.destroy_process_group()
