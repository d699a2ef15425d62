import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def build():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def save_earlier_run(path):
    torch.save({"step": 40, "model": DDP(build()).state_dict()}, path)


def resume(model, path):
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"], strict=False)  # culprit
    return state["step"]


def main():
    dist.init_process_group("gloo")
    path = os.path.join(tempfile.mkdtemp(), "last.pt")
    save_earlier_run(path)
    torch.manual_seed(0)
    net = build()
    step = resume(net, path)
    if dist.get_rank() == 0:
        print("resumed at", step)
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


main()
