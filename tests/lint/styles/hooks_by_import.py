import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler
from commlib import mean_over_ranks

def main():
    dist.init_process_group("gloo")
    images = torchvision.datasets.CIFAR10("data", transform=torchvision.transforms.ToTensor())
    sampler = DistributedSampler(images)
    loader = DataLoader(images, batch_size=64, sampler=sampler)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
    for parameter in model.parameters():
        parameter.register_hook(mean_over_ranks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
