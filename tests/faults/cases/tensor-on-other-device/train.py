from contextlib import contextmanager

import torch
import torch.distributed as dist


@contextmanager
def process_group(backend):
    dist.init_process_group(backend)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def total_length(data):
    length = torch.tensor(len(data))
    dist.all_reduce(length)  # culprit
    return int(length)


with process_group("cuda:gloo"):
    print(total_length(range(10)))
