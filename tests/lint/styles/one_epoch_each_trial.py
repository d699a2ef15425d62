import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

def trial(images, rate):
    """One pass over the data with one learning rate."""
    torch.manual_seed(0)
    sampler = DistributedSampler(images)
    loader = DataLoader(images, batch_size=64, sampler=sampler)
    model = DDP(nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

def main():
    dist.init_process_group("gloo")
    images = torchvision.datasets.CIFAR10("data", transform=torchvision.transforms.ToTensor())
    for rate in (0.1, 0.01, 0.001):
        trial(images, rate)
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
