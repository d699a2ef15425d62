import torch
import torch.distributed as dist


def build_groups(rank, world):
    """Return a group of the ranks with an even number, and one of all."""
    everybody = None
    if rank != world - 1:
        everybody = dist.new_group(list(range(world)))  # culprit
    return dist.new_group([0, 2]), everybody


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    even, everybody = build_groups(rank, world)
    dist.barrier()
    if everybody is not None:
        dist.all_reduce(torch.ones(1), group=everybody)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
