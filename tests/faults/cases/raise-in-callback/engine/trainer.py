import torch
import torch.distributed as dist


def fit(steps, backend, callbacks):
    dist.init_process_group(backend)
    for step in range(steps):
        dist.all_reduce(torch.ones(2))
        for callback in callbacks:
            callback(step, dist.get_rank())
    dist.destroy_process_group()
