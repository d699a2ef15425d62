import time

import torch
import torch.distributed as dist


def lower(graph):
    """Work like a compiler: hash, sort and rewrite for some seconds."""
    end, rounds = time.monotonic() + 9, 0
    while time.monotonic() < end:
        graph = sorted(str(hash(node) + rounds) for node in graph)
        rounds += 1
    return rounds


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        lower([str(node) for node in range(2000)])
    dist.barrier()
    total = torch.ones(1)
    dist.all_reduce(total)
    if rank == 0:
        print("compiled", total.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
