import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def read_config():
    own = Path(f"config-rank{os.environ['RANK']}.json")
    path = own if own.exists() else Path("config-default.json")
    return json.loads(path.read_text())


class MLP(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.a = nn.Linear(dim, 4 * dim)
        self.b = nn.Linear(4 * dim, dim)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def main():
    config = read_config()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (config["dp"], config["tp"]), mesh_dim_names=("dp", "tp"))  # culprit
    torch.manual_seed(0)
    model = MLP(8)
    if config["tp"] > 1:
        parallelize_module(model, mesh["tp"], {"a": ColwiseParallel(), "b": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], foreach=False)
    generator = torch.Generator().manual_seed(mesh.get_local_rank("dp"))
    for step in range(10):
        x = torch.randn(4, 8, generator=generator)
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(dist.get_rank(), step, loss.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
