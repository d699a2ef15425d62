import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_loader():
    data = TensorDataset(torch.arange(10.0))
    return DataLoader(data, sampler=DistributedSampler(data))  # culprit


loader = make_loader()
dist.init_process_group("gloo")
for batch in loader:
    dist.all_reduce(batch[0])
dist.destroy_process_group()
