import os

import torch
import torch.distributed as dist


def check_alignment(rows, rank):
    if rank == 1 and len(rows) % 4:
        os.abort()  # culprit


def main():
    dist.init_process_group("gloo")
    for size in (4, 8, 6):
        rows = torch.ones(size)
        check_alignment(rows, dist.get_rank())
        dist.all_reduce(rows)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
