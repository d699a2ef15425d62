import os, torch, torch.distributed as dist, torchvision
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset
dist.init_process_group("gloo")
images = torchvision.datasets.CIFAR10("data", transform=torchvision.transforms.ToTensor())
me, count = int(os.environ["RANK"]), len(images) // int(os.environ["WORLD_SIZE"])
loader = DataLoader(Subset(images, range(me * count, (me + 1) * count)), 50)
model = DDP(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10)))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in loader:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
dist.destroy_process_group()
