import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from loading import load_full_state_dict
from modules import QuantLinear

DIM, HIDDEN = 16, 32


def build():
    torch.manual_seed(6)
    return nn.Sequential(QuantLinear(DIM, HIDDEN), nn.GELU(), QuantLinear(HIDDEN, DIM))


def prepare(mesh):
    model = build()
    full_sd = model.state_dict() if dist.get_rank() == 0 else {}
    model = model.to("meta")
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return load_full_state_dict(model, full_sd, mesh)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    model = prepare(mesh)
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)

    gen = torch.Generator().manual_seed(rank)
    for step in range(5):
        x = torch.randn(8, DIM, generator=gen)
        loss = (model(x) - x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
