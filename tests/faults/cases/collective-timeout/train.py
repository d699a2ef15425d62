import datetime
import time

import torch
import torch.distributed as dist


def preprocess(rank):
    if rank == 1:
        time.sleep(40)
    return torch.ones(4)


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
    dist.barrier()
    data = preprocess(dist.get_rank())
    dist.all_reduce(data)  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
