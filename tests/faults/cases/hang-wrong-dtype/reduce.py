import time

import torch
import torch.distributed as dist


class Average:
    def __init__(self, kind, rank):
        self.total = torch.zeros(3, dtype=kind)
        self.parts = [torch.zeros(3) for _ in range(dist.get_world_size())] if rank == 0 else None

    def collect(self):
        dist.gather(self.total, self.parts, dst=0)  # culprit
        return self.parts


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.barrier()
    if rank == 0:
        time.sleep(25)  # reads its part first
    for _ in range(3):
        Average(torch.float64 if rank == 2 else torch.float32, rank).collect()
    dist.barrier()
    dist.destroy_process_group()


main()
