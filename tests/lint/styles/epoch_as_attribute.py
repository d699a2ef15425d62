import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

def main():
    dist.init_process_group("gloo")
    images = torchvision.datasets.CIFAR10("data", transform=torchvision.transforms.ToTensor())
    sampler = DistributedSampler(images)
    loader = DataLoader(images, batch_size=64, sampler=sampler)
    model = DDP(nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.epoch = epoch
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
