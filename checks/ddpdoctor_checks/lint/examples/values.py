"""Examples of values that ranks share: splits, seeds of workers, results, gathered tensors."""

_EVALUATE = """\
import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
model = DistributedDataParallel(torchvision.models.resnet18())
images = torchvision.datasets.CIFAR10("data", train=False)
loader = DataLoader(images, 8, sampler=DistributedSampler(images, shuffle=False))
right = torch.zeros(2)
with torch.no_grad():
    for x, y in loader:
        right += torch.tensor([(model(x).argmax(1) == y).sum(), len(y)])
"""
_SPLIT = """\
import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, random_split

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
images = torchvision.datasets.CIFAR10("data")
train, test = random_split(images, [40000, 10000])
sampler = DistributedSampler(train)
loader = DataLoader(train, 8, sampler=sampler)
model = DistributedDataParallel(torchvision.models.resnet18())
for epoch in range(10):
    sampler.set_epoch(epoch)
    for x, y in loader:
        model(x).sum().backward()
dist.destroy_process_group()
"""
_SHARES = """\
import random
import torch
import torch.distributed as dist
import torchvision
from pathlib import Path
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
model = DistributedDataParallel(torchvision.models.resnet18())
files = sorted(Path("data").glob("*.pt"))
for epoch in range(10):
    random.shuffle(files)
    for file in files[rank::world_size]:
        model(torch.load(file)).sum().backward()
dist.destroy_process_group()
"""
_WORKERS = """\
import random
import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

def seed_worker(worker):
    random.seed(worker)

dist.init_process_group("gloo")
images = torchvision.datasets.CIFAR10("data")
sampler = DistributedSampler(images)
loader = DataLoader(images, 8, sampler=sampler, num_workers=4, worker_init_fn=seed_worker)
model = DistributedDataParallel(torchvision.models.resnet18())
for epoch in range(10):
    sampler.set_epoch(epoch)
    for x, y in loader:
        model(x).sum().backward()
dist.destroy_process_group()
"""
_CONTRAST = """\
import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel

def gather(z):
    parts = [torch.zeros_like(z) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, z)
    return torch.cat(parts)

def train(batches):
    model = DistributedDataParallel(torchvision.models.resnet18())
    for x in batches:
        z = model(x)
        loss = (z @ gather(z).t()).logsumexp(1).mean()
        loss.backward()
"""

_REDUCED = f"{_EVALUATE}dist.all_reduce(right)\nprint(right[0] / right[1])\ndist.destroy_process_group()\n"
_SHARED = (
    _REDUCED.replace("DistributedSampler\n", "Subset\n")
    .replace(
        "loader = DataLoader(images, 8, sampler=DistributedSampler(images, shuffle=False))",
        "part = Subset(images, range(dist.get_rank(), len(images), dist.get_world_size()))\n"
        "loader = DataLoader(part, 8)",
    )
    .replace("model(x)", "model.module(x)")
)
VALUES = {
    "COL010": (
        _CONTRAST,
        _CONTRAST.replace(
            "    return torch.cat(parts)\n",
            "    parts[dist.get_rank()] = z  # with its gradient\n    return torch.cat(parts)\n",
        ),
    ),
    "DAT004": (_SPLIT, _SPLIT.replace("manual_seed(dist.get_rank())", "manual_seed(0)")),
    "DAT005": (_SHARES, _SHARES.replace("random.shuffle", "random.Random(epoch).shuffle")),
    "DAT006": (_WORKERS, _WORKERS.replace("random.seed(worker)", "random.seed(torch.initial_seed())")),
    "DAT007": (_REDUCED, _SHARED),
    "NUM005": (f"{_EVALUATE}print(right[0] / right[1])\ndist.destroy_process_group()\n", _SHARED),
}
