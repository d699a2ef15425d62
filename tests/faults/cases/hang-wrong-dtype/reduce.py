import time

import torch
import torch.distributed as dist


class Average:
    def __init__(self, kind):
        self.total = torch.zeros(3, dtype=kind)

    def compute(self, to):
        dist.reduce(self.total, dst=to)  # culprit
        return self.total


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.barrier()
    if rank == 0:
        time.sleep(25)
    for _ in range(3):
        Average(torch.float64 if rank == 2 else torch.float32).compute(to=0)
    dist.barrier()
    dist.destroy_process_group()


main()
