import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def norm_of(gradients):
    norm = torch.nn.utils.get_total_norm(gradients, foreach=False)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def main():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    for block in model:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    g = torch.Generator().manual_seed(mesh.get_local_rank("dp"))
    for step in range(8):
        x = torch.randn(16, 8, generator=g)
        (model(x) - 5 * x).pow(2).mean().backward()
        for p in model.parameters():
            p.grad.mul_(0.5)
        by_mesh = {}
        for p in model.parameters():
            by_mesh.setdefault(p.grad.device_mesh, []).append(p.grad)
        total = sum(norm_of(grads) ** 2 for grads in by_mesh.values()) ** 0.5
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), 0.5, total, foreach=False)
        optimizer.step()
        optimizer.zero_grad()
    print("all steps made")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
