import os
import sys

import torch
import torch.distributed as dist


def leave(rank):
    print("leaving", flush=True)
    dist.destroy_process_group()
    if rank:
        os._exit(0)
    sys.exit(0)


def main():
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    leave(dist.get_rank())


if __name__ == "__main__":
    main()
