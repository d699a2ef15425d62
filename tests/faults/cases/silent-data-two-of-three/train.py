import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Data:
    def __init__(self, batch_size):
        generator = torch.Generator().manual_seed(8)
        self.set = TensorDataset(torch.randn(72, 5, generator=generator))
        part = min(int(os.environ["LOCAL_RANK"]), 1)
        self.sampler = DistributedSampler(self.set, num_replicas=dist.get_world_size(), rank=part)
        self.batch_size = batch_size

    def epoch(self, number):
        self.sampler.set_epoch(number)
        return DataLoader(self.set, batch_size=self.batch_size, sampler=self.sampler)


def main():
    dist.init_process_group("gloo")
    data = Data(4)
    model = DistributedDataParallel(torch.nn.Linear(5, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(2):
        for (x,) in data.epoch(number):  # culprit
            optimizer.zero_grad()
            (model(x) - x).abs().mean().backward()
            optimizer.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
