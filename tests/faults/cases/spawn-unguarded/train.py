import os

import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, size):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29675")
    dist.init_process_group("gloo", rank=rank, world_size=size)
    dist.barrier()
    dist.destroy_process_group()


mp.spawn(work, args=(2,), nprocs=2)  # culprit
