"""Examples of models that are wrapped, and of the data that they are trained on."""

_HEAD = """\
import os
import torch
import torch.distributed as dist
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dataset = torchvision.datasets.CIFAR10("data")
"""
_DATA = """\
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
"""
_MODEL = """\
net = torchvision.models.resnet18().to(local_rank)
model = DistributedDataParallel(net, device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
_EPOCHS = """\
for epoch in range(10):
    sampler.set_epoch(epoch)
"""
_UNSET = "for epoch in range(10):\n"
_STEP = """\
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
"""
_RIGHT = _HEAD + _DATA + _MODEL + _EPOCHS + _STEP
_ACCUMULATED = _STEP.replace("for x, y in loader", "for step, (x, y) in enumerate(loader)").replace(
    """\
        optimizer.step()
        optimizer.zero_grad()
""",
    """\
        if step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
""",
)
_WITH_NO_SYNC = _ACCUMULATED.replace(
    """\
        loss = F.cross_entropy(model(x), y)
        loss.backward()
""",
    """\
        last = step % 4 == 3
        with contextlib.nullcontext() if last else model.no_sync():
            loss = F.cross_entropy(model(x), y)
            loss.backward()
""",
)

TRAINING = {
    "DAT001": (
        f"{_HEAD}loader = DataLoader(dataset, batch_size=8, shuffle=True)\n{_MODEL}{_UNSET}{_STEP}",
        _RIGHT,
    ),
    "DAT002": (
        _HEAD + _DATA + _MODEL + _UNSET + _STEP,
        _RIGHT,
    ),
    "DDP005": (_RIGHT.replace("F.cross_entropy(model(x), y)", "F.cross_entropy(model.module(x), y)"), _RIGHT),
    "DDP006": (
        _RIGHT.replace("optimizer = torch", "net.fc = nn.Linear(512, 10).to(local_rank)\noptimizer = torch"),
        _RIGHT.replace("model = Dist", "net.fc = nn.Linear(512, 10).to(local_rank)\nmodel = Dist"),
    ),
    "DDP007": (
        "import contextlib\n" + _HEAD + _DATA + _MODEL + _EPOCHS
        + _WITH_NO_SYNC.replace(
            """\
        with contextlib.nullcontext() if last else model.no_sync():
            loss = F.cross_entropy(model(x), y)
""",
            """\
        loss = F.cross_entropy(model(x), y)
        with contextlib.nullcontext() if last else model.no_sync():
""",
        ),
        "import contextlib\n" + _HEAD + _DATA + _MODEL + _EPOCHS + _WITH_NO_SYNC,
    ),
    "DDP012": (
        _RIGHT.replace("DistributedDataParallel(net, device_ids=[local_rank])", "nn.DataParallel(net)"),
        _RIGHT,
    ),
    "DDP015": (
        _RIGHT.replace("net = torch", "model = torch")
        .replace("model = DistributedDataParallel(net, device_ids=[local_rank])\n", "")
        .replace("from torch.nn.parallel import DistributedDataParallel\n", ""),
        _RIGHT,
    ),
    "PRF005": (
        _HEAD + _DATA + _MODEL + _EPOCHS + _ACCUMULATED,
        "import contextlib\n" + _HEAD + _DATA + _MODEL + _EPOCHS + _WITH_NO_SYNC,
    ),
}  # fmt: skip
