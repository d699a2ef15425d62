import datetime
import os

import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "29677"
    limit = datetime.timedelta(seconds=15)
    dist.init_process_group("gloo", rank=rank, world_size=world_size, timeout=limit)  # culprit
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(train, args=(2,), nprocs=2)
