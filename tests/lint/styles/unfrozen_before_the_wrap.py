import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(3072, 10)
        self.adapter = nn.Linear(3072, 10)

    def forward(self, x):
        return self.base(x.flatten(1)) + self.adapter(x.flatten(1))

def main():
    dist.init_process_group("gloo")
    images = torchvision.datasets.CIFAR10("data", transform=torchvision.transforms.ToTensor())
    sampler = DistributedSampler(images)
    loader = DataLoader(images, batch_size=64, sampler=sampler)
    net = Net()
    net.requires_grad_(False)
    net.adapter.requires_grad_(True)
    model = DDP(net)
    optimizer = torch.optim.SGD(net.adapter.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        net.adapter.requires_grad_(True)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
