import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(3):
        if rank == 1:
            time.sleep(3)
        dist.all_reduce(torch.ones(4))
    if rank == 0:
        print("trained")
    dist.destroy_process_group()


main()
