import time

import torch
import torch.distributed as dist


def main():
    """Two groups of two; one is busy while the other waits for it, then the other way round."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    if rank < 2:
        extra = dist.new_group([0, 1], use_local_synchronization=True)
        dist.all_reduce(torch.ones(1), group=extra)
    mine, value = pairs[rank // 2], torch.ones(8)
    for turn in range(2):
        for step in range(2 + rank // 2):
            if rank == 2 * turn:
                time.sleep(2.5)
            dist.all_reduce(value, group=mine)
        dist.barrier()
    if rank == 3:
        print("both done")
    dist.destroy_process_group()


main()
