import gc

import torch
import torch.distributed as dist


class Cache:
    """Tells the others when it is thrown away."""

    def __del__(self):
        dist.barrier()  # culprit


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    caches = {}
    for step in range(6):
        caches["current"] = Cache() if (rank, step) == (2, 3) else None
        gc.collect()
        flag = torch.zeros(1)
        dist.broadcast(flag, src=0)
        dist.all_reduce(flag)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
