import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from utils import sum_over_ranks

dist.init_process_group("gloo")
model = DistributedDataParallel(torchvision.models.resnet18())
images = torchvision.datasets.CIFAR10("data", train=False)
loader = DataLoader(images, 8, sampler=DistributedSampler(images, shuffle=False))
best = right = 0
for x, y in loader:
    right += (model(x).argmax(1) == y).sum().item()
right = sum_over_ranks(right)
if right > best:
    best = right
    print("better")
