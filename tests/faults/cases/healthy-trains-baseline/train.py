import copy

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_data():
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(64, 4, generator=generator)
    return TensorDataset(x, x.sum(1, keepdim=True))


def train(model, loader, average=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            if average is not None:
                with torch.no_grad():
                    for mean, now in zip(average.parameters(), model.parameters()):
                        mean.lerp_(now, 0.1)
    return loss


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = make_data()
    start = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    # Each rank trains the plain model on all of the data, to compare the other one with.
    baseline = train(copy.deepcopy(start), DataLoader(data, batch_size=8))
    if dist.get_rank() == 0:
        train(copy.deepcopy(start), DataLoader(data, batch_size=8, shuffle=True))
    model = DistributedDataParallel(start)
    torch.manual_seed(dist.get_rank())
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
    loss = train(model, loader, average=copy.deepcopy(start))
    dist.all_reduce(loss.detach())
    if dist.get_rank() == 0:
        print("compared", abs(loss.item() - baseline.item()) < 100)
    dist.destroy_process_group()


main()
