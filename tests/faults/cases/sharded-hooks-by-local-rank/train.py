import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

LOCAL_RANK = int(os.environ["LOCAL_RANK"])


class ActivationMonitor:
    """Mean absolute activation of each block over all ranks."""

    def __init__(self):
        self.values = {}

    def watch(self, name, module):
        def hook(_module, _inputs, output):
            mean = output.detach().abs().mean()
            dist.all_reduce(mean)  # culprit
            self.values[name] = mean.item() / dist.get_world_size()

        module.register_forward_hook(hook)


def build():
    torch.manual_seed(0)
    model = nn.Sequential()
    for index in range(3):
        model.add_module(f"block{index}", fully_shard(nn.Sequential(nn.Linear(8, 8), nn.ELU())))
    return fully_shard(model)


def main():
    dist.init_process_group("gloo")
    model = build()
    monitor = ActivationMonitor()
    if LOCAL_RANK == 0:
        for name, module in model.named_children():
            monitor.watch(name, module)  # culprit
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        x = torch.randn(4, 8)
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(monitor.values)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
