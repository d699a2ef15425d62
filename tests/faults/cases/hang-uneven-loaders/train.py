import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset


class Shards(IterableDataset):
    """Files are given out round robin; they are not of the same length."""

    LENGTHS = (24, 16, 24)

    def __init__(self, rank):
        self.length = self.LENGTHS[rank]

    def __iter__(self):
        for index in range(self.length):
            yield torch.full((4,), float(index)), torch.tensor([1.0])


def run():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        for inputs, target in DataLoader(Shards(dist.get_rank()), batch_size=4):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), target).backward()
            optimizer.step()
        dist.barrier()  # culprit
    dist.destroy_process_group()


run()
