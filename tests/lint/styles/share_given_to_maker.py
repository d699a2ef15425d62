import torch, torch.distributed as dist, torchvision
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset
def make_loader(images, indices):
    return DataLoader(Subset(images, indices), 50)
dist.init_process_group("gloo")
images = torchvision.datasets.CIFAR10("data", transform=torchvision.transforms.ToTensor())
rank, count = dist.get_rank(), len(images) // dist.get_world_size()
loader = make_loader(images, range(rank * count, (rank + 1) * count))
model = DDP(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10)))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in loader:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
dist.destroy_process_group()
