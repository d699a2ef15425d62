import math

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Sampler, TensorDataset


class BalancedSampler(Sampler):
    """As many of each class on each rank."""

    def __init__(self, labels, seed=0):
        self.labels, self.seed, self.epoch = labels, seed, 0
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return math.ceil(len(self.labels) / self.world)

    def __iter__(self):
        source = numpy.random.default_rng(self.seed)
        order = []
        for label in numpy.unique(self.labels):
            order.append(source.permutation(numpy.flatnonzero(self.labels == label)))
        mixed = numpy.stack(order, axis=1).reshape(-1).tolist()
        return iter(mixed[self.rank :: self.world])


def main():
    dist.init_process_group("gloo")
    labels = numpy.arange(72) % 3
    data = TensorDataset(torch.linspace(0, 1, 72).unsqueeze(1), torch.from_numpy(labels))
    sampler = BalancedSampler(labels)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    model = DistributedDataParallel(torch.nn.Linear(1, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:  # culprit
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
