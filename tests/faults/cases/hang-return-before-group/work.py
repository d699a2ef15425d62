import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def find_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def work(rank, world, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    total = torch.ones(1)
    dist.all_reduce(total)
    if rank == world - 1:
        dist.destroy_process_group()
        return
    members = dist.new_group(list(range(world)))
    dist.all_reduce(total, group=members)


if __name__ == "__main__":
    mp.spawn(work, args=(3, find_port()), nprocs=3)
