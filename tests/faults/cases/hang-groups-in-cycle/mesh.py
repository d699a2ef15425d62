import torch
import torch.distributed as dist

RING = ((0, 1), (1, 2), (2, 3), (3, 0))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = {pair: dist.new_group(sorted(pair)) for pair in RING}
    dist.barrier()
    dist.all_reduce(torch.ones(1), group=groups[RING[rank]])  # to the right
    dist.all_reduce(torch.ones(1), group=groups[RING[rank - 1]])  # to the left
    dist.destroy_process_group()


main()
