import os
import sys

import torch
import torch.distributed as dist
from torch import multiprocessing

from schedule import Schedule


class Meter(dict):
    def flush(self):
        return self["loss"] / self["steps"]  # culprit


def train(rank, size):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29694", RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("gloo")
    meter = Meter(loss=0.0)
    schedule = Schedule(0.1, slope=0.0 if rank == 0 else 0.04)
    try:
        for step in range(10):
            schedule.advance()
            dist.all_reduce(torch.tensor(schedule.rate))
    finally:
        meter.flush()


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=train, args=(rank, 2)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(any(process.exitcode for process in processes))
