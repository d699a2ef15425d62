import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from monitor import ActivationMonitor


def get_logger(rank):
    logger = logging.getLogger("train")
    logger.addHandler(logging.StreamHandler() if rank == 0 else logging.NullHandler())
    logger.setLevel(logging.INFO if rank == 0 else logging.ERROR)
    return logger


def main():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    rank = mesh.get_rank()
    logger = get_logger(rank)
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("stem", nn.Linear(10, 20))
    model.add_module("act", nn.ReLU())
    model.add_module("head", nn.Linear(20, 1))
    fully_shard(model.stem, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if logger.isEnabledFor(logging.INFO):
        monitor = ActivationMonitor()
        monitor.attach(model, {"act"})
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(rank)
    for step in range(12):
        x = torch.randn(6, 10, generator=data)
        loss = nn.functional.mse_loss(model(x), x[:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logger.info("step %d loss %.4f", step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
