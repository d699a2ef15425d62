import datetime
import time

import torch
import torch.distributed as dist


def read_shard(rank):
    if rank == 1:
        time.sleep(100)  # culprit
    return torch.ones(4)


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=9))
    for _ in range(3):
        dist.all_reduce(torch.ones(1))
    data = read_shard(dist.get_rank())
    dist.all_reduce(data)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
