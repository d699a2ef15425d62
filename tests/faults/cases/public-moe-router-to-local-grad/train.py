import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

DIM, HIDDEN, EXPERTS, TOKENS = 12, 16, 4, 32


class Router(nn.Module):
    def __init__(self, mesh):
        super().__init__()
        self.mesh = mesh
        weight = torch.randn(EXPERTS, DIM) * 0.3
        self.weight = nn.Parameter(distribute_tensor(weight, mesh, [Replicate()]))

    def forward(self, x):
        x = DTensor.from_local(x, self.mesh, [Replicate()], run_check=False)
        return F.linear(x, self.weight).to_local()  # culprit


class Experts(nn.Module):
    def __init__(self, mesh):
        super().__init__()
        self.mesh = mesh
        up = torch.randn(EXPERTS, HIDDEN, DIM) * 0.3
        down = torch.randn(EXPERTS, DIM, HIDDEN) * 0.3
        self.up = nn.Parameter(distribute_tensor(up, mesh, [Shard(1)]))
        self.down = nn.Parameter(distribute_tensor(down, mesh, [Shard(2)]))

    def forward(self, x, weights):
        up, down = self.up.to_local(), self.down.to_local()
        hidden = F.gelu(torch.einsum("td,ehd->teh", x, up))
        out = torch.einsum("teh,edh,te->td", hidden, down, weights)
        out = DTensor.from_local(out, self.mesh, [Partial()], run_check=False)
        return out.redistribute(placements=[Replicate()]).to_local()


class MoELayer(nn.Module):
    def __init__(self, mesh):
        super().__init__()
        self.router = Router(mesh)
        self.experts = Experts(mesh)

    def forward(self, x):
        scores = F.softmax(self.router(x), dim=-1)
        top, idx = scores.topk(2, dim=-1)
        weights = torch.zeros_like(scores).scatter(-1, idx, top)
        return self.experts(x, weights)  # culprit


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    torch.manual_seed(77)
    model = MoELayer(mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)

    gen = torch.Generator().manual_seed(5)
    for step in range(6):
        x = torch.randn(TOKENS, DIM, generator=gen)
        loss = (model(x) - torch.sin(x)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)

    gate = model.router.weight.to_local()
    print(f"rank {rank} router norm {gate.norm().item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
