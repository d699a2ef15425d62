import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

def loader_of(images, epoch):
    sampler = DistributedSampler(images, seed=epoch)
    return DataLoader(images, batch_size=64, sampler=sampler)

def train_epoch(model, optimizer, images, epoch):
    for x, y in loader_of(images, epoch):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

def main():
    dist.init_process_group("gloo")
    images = torchvision.datasets.CIFAR10("data", transform=torchvision.transforms.ToTensor())
    model = DDP(nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        train_epoch(model, optimizer, images, epoch)
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
