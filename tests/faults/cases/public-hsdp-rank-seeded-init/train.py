import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

DIM, HIDDEN = 16, 32
INIT_SEED = 12536


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(DIM, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, DIM, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


@torch.no_grad()
def init_weights(model):
    seed = INIT_SEED + dist.get_rank()  # culprit
    gen = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        local = p.to_local()
        local.copy_(torch.randn(local.shape, generator=gen) * 0.1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    with torch.device("meta"):
        model = nn.Sequential(MLP(), MLP())
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    init_weights(model)  # culprit
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)

    gen = torch.Generator().manual_seed(50 + rank)
    for step in range(8):
        x = torch.randn(8, DIM, generator=gen)
        loss = (model(x) - x.roll(1, dims=-1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} loss {mean.item() / dist.get_world_size():.5f}", flush=True)

    full = model[0].up.weight.full_tensor()
    print(f"rank {rank} coord {mesh.get_coordinate()} up norm {full.norm().item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
