import time

import torch
import torch.distributed as dist

MICRO_BATCHES = 3


def stage(rank, last):
    for index in range(MICRO_BATCHES):
        data = torch.full((64,), float(index))
        if rank:
            dist.recv(data, src=rank - 1)
        time.sleep(2.5 if rank == 1 else 0.2)
        if rank != last:
            dist.isend(data + 1, dst=rank + 1).wait()
    return data.sum().item()


def exchange(rank, world):
    """Everybody gives to the right and takes from the left, once with one rank late."""
    if rank == 2:
        time.sleep(6)
    out, back = torch.ones(8), torch.empty(8)
    jobs = [
        dist.P2POp(dist.isend, out, (rank + 1) % world),
        dist.P2POp(dist.irecv, back, (rank - 1) % world),
    ]
    for work in dist.batch_isend_irecv(jobs):
        work.wait()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    total = stage(rank, world - 1)
    exchange(rank, world)
    dist.barrier()
    if rank == world - 1:
        print("total", total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
