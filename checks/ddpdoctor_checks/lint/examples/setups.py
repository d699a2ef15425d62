"""Examples of how a wrapped model and its group are set up."""

_CHECKPOINT = """\
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Linear(6, 6)

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=True)

def train(batches):
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Net(), find_unused_parameters=True)
    for x in batches:
        model(x).sum().backward()
    dist.destroy_process_group()

train([])
"""
_SMALL = """\
import os
import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x):
        return self.norm(self.first(x)).mean()

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
images = torchvision.datasets.CIFAR10("data")
sampler = DistributedSampler(images)
loader = DataLoader(images, batch_size=2, sampler=sampler)
model = DistributedDataParallel(Net().cuda())
for epoch in range(10):
    sampler.set_epoch(epoch)
    for x, y in loader:
        model(x.cuda()).backward()
dist.destroy_process_group()
"""
_DEVICES = """\
import os
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
local_rank = int(os.environ["LOCAL_RANK"])
model = DistributedDataParallel(nn.Linear(2, 2), device_ids=[local_rank])
dist.destroy_process_group()
"""
_LEFT = """\
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = DistributedDataParallel(nn.Linear(2, 2).cuda())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(10):
        model(torch.ones(2, 2, device="cuda")).sum().backward()
        optimizer.step()

if __name__ == "__main__":
    main()
"""

SETUPS = {
    "COL012": (_LEFT, _LEFT.replace(".step()\n", ".step()\n    dist.destroy_process_group()\n")),
    "DDP003": (_CHECKPOINT, _CHECKPOINT.replace("use_reentrant=True", "use_reentrant=False")),
    "DDP013": (
        _SMALL,
        _SMALL.replace("Parallel(Net().cuda())", "Parallel(net)").replace(
            "model = Dist", "net = nn.SyncBatchNorm.convert_sync_batchnorm(Net().cuda())\nmodel = Dist"
        ),
    ),
    "DDP016": (_DEVICES, _DEVICES.replace(", device_ids=[local_rank]", "")),
}
