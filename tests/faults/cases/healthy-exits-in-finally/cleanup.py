import sys

import torch
import torch.distributed as dist


def report(rank):
    raise ConnectionResetError(104, "Connection reset by peer: the dashboard is down")


def main():
    dist.init_process_group("gloo")
    try:
        dist.all_reduce(torch.ones(1))
        report(dist.get_rank())
    finally:
        dist.barrier()
        dist.destroy_process_group()
        print("cleaned up", flush=True)
        sys.exit(0)


main()
