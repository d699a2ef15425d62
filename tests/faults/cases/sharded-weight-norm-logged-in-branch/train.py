import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

log = logging.getLogger("train")


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x):
        return self.down(torch.relu(self.gate(x)))


def histogram(name, parameter):
    values = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter  # culprit
    log.info("%s min %.3f max %.3f", name, values.min().item(), values.max().item())


def main():
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    main_process = mesh.get_rank() == 0
    logging.basicConfig(level=logging.INFO if main_process else logging.WARNING)
    torch.manual_seed(0)
    model = parallelize_module(FeedForward(), mesh, {"gate": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(8):
        x = torch.randn(4, 16)
        (model(x) - x).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 4 and main_process:
            for name, parameter in model.named_parameters():
                histogram(name, parameter)  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
