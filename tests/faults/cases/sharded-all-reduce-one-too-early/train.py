from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


@dataclass
class Options:
    replicas: int = 2
    shards: int = 2
    accumulate: int = 2
    micro_batches: int = 16
    lr: float = 0.05


class Encoder(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 5))


def main(options):
    mesh = init_device_mesh("cpu", (options.replicas, options.shards), mesh_dim_names=("rep", "shard"))
    torch.manual_seed(0)
    model = Encoder()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    data = torch.Generator().manual_seed(mesh.get_rank())
    for index in range(options.micro_batches):
        model.set_requires_all_reduce(index % options.accumulate == 0)  # culprit
        x = torch.randn(6, 10, generator=data)
        loss = nn.functional.mse_loss(model(x), x.view(6, 5, 2).prod(-1))
        (loss / options.accumulate).backward()
        if (index + 1) % options.accumulate == 0:
            optimizer.step()  # culprit
            optimizer.zero_grad()
    if mesh.get_rank() == 0:
        print(f"finished, loss {loss.item():.4f}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(Options())
    dist.destroy_process_group()
