import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    heads = None
    if rank % 2 == 0:
        heads = dist.new_group(list(range(0, size, 2)), use_local_synchronization=True)
    pairs = [dist.new_group([first, first + 1]) for first in range(0, size, 2)]
    value = torch.ones(4)
    for _ in range(3):
        dist.all_reduce(value, group=pairs[rank // 2])
        if heads is not None:
            if rank == 0:
                time.sleep(2)
            dist.all_reduce(value, group=heads)
        dist.broadcast(value, src=rank // 2 * 2, group=pairs[rank // 2])
    dist.barrier()
    print("reduced", rank)
    dist.destroy_process_group()


main()
