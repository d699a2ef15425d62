import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for shard in range(3):
        if rank == 0:
            time.sleep(3)
        dist.barrier()
        dist.reduce(torch.ones(2), dst=0)
    if rank == 0:
        print("evaluated")
    dist.destroy_process_group()


main()
