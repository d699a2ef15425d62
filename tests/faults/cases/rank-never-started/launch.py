import datetime
import os

import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, size):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29679")
    limit = datetime.timedelta(seconds=6)
    dist.init_process_group("gloo", rank=rank, world_size=size, timeout=limit)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(3,), nprocs=2)
