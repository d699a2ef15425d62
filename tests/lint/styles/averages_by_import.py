import torch, torch.distributed as dist, torchvision
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler
from commlib import average_gradients
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
images = torchvision.datasets.CIFAR10("data", transform=torchvision.transforms.ToTensor())
loader = DataLoader(images, 50, sampler=DistributedSampler(images))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    average_gradients(model.parameters())
    optimizer.step()
dist.destroy_process_group()
