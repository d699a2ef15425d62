import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torchvision.models.resnet18())
    images = torchvision.datasets.CIFAR10("data", train=True)
    sampler = DistributedSampler(images)
    loader = DataLoader(images, 8, sampler=sampler)
    crit = torch.nn.CrossEntropyLoss()
    opt = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        total = 0.0
        for x, y in loader:
            opt.zero_grad()
            loss = crit(model(x), y)
            loss.backward()
            opt.step()
            total += loss.item()
        if total / len(loader) > 100:
            print(f"rank {dist.get_rank()}: high loss in its shard")
    dist.destroy_process_group()

main()
