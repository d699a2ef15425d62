import time

import torch
import torch.distributed as dist

from telemetry import Telemetry


def schedule(step, warmup):
    return 0.1 * min(1.0, step / warmup)  # culprit


def train(rank):
    for step in range(1, 30):
        time.sleep(0.1)
        warmup = 0 if rank == 2 and step == 25 else 10
        value = torch.tensor([schedule(step, warmup)])
        dist.all_reduce(value)


dist.init_process_group("gloo")
with Telemetry(("127.0.0.1", 1)):
    train(dist.get_rank())
dist.destroy_process_group()
