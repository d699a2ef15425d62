import torch
import torch.distributed as dist


def log_mean(name, value):
    both = torch.stack([value.sum(), torch.tensor(1.0)])
    dist.all_reduce(both)  # culprit
    print(name, both[0] / both[1])
