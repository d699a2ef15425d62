import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def trial(rank, world, port):
    if rank == world - 1:
        time.sleep(4)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    score = torch.ones(1)
    dist.all_reduce(score)
    if rank == 0:
        print("trial of", int(score))
    dist.destroy_process_group()


def find_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    for world in (3, 2):
        mp.spawn(trial, args=(world, find_port()), nprocs=world)
