import time

import torch
import torch.distributed as dist


def load(rank):
    if rank == 0:
        time.sleep(25)  # unpacks first; without ddpdoctor all is seen only then
    return torch.ones(7 if rank == 3 else 8)


def share(values):
    dist.broadcast(values, src=0)  # culprit
    return values


def main():
    dist.init_process_group("gloo")
    for _ in range(4):
        share(torch.ones(8))
    print(share(load(dist.get_rank())))
    dist.barrier()
    dist.destroy_process_group()


main()
