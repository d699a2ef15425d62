import os

import torch
import torch.distributed as dist


def setup(timeout):
    dist.init_process_group(os.environ.get("BACKEND", "gloo"), timeout=timeout)


def is_main_process():
    return dist.get_rank() == 0


def save_checkpoint(state, path):
    if is_main_process():
        torch.save(state, path + ".part")
        os.replace(path + ".part", path)
    dist.barrier()


def reduce_tensor(value):
    total = value.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


class Meter:
    def __init__(self):
        self.sum = 0.0
        self.count = 0

    def update(self, value, count):
        self.sum += value * count
        self.count += count

    def synchronize_between_processes(self):
        both = torch.tensor([self.sum, self.count], dtype=torch.float64)
        dist.all_reduce(both)
        self.sum, self.count = both.tolist()

    @property
    def mean(self):
        return self.sum / max(self.count, 1)
