import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class SplitLinear(nn.Module):
    """Its input is cut among the tensor-parallel ranks; the bias is the same on all."""

    def __init__(self, wide, out, group):
        super().__init__()
        self.group = group
        self.part = wide // dist.get_world_size(group)
        self.rank = dist.get_rank(group)
        generator = torch.Generator().manual_seed(self.rank)
        self.weight = nn.Parameter(torch.randn(out, self.part, generator=generator) / wide**0.5)
        self.bias = nn.Parameter(torch.zeros(out))
        self.weight.is_shard = True

    def forward(self, x):
        mine = x[:, self.rank * self.part : (self.rank + 1) * self.part]
        return Reduce.apply(mine @ self.weight.T, self.group) + self.bias


@torch.no_grad()
def clip_by_global_norm(parameters, limit, group):
    first = dist.get_rank(group) == 0
    total = torch.zeros(())
    for p in parameters:
        if getattr(p, "is_shard", False) or first:
            total += p.grad.pow(2).sum()
    dist.all_reduce(total, group=group)
    norm = total.sqrt()
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for p in parameters:
        p.grad.mul_(factor)
    return norm.item()


def main():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    data, tensor = mesh.get_group("data"), mesh.get_group("tensor")
    model = SplitLinear(24, 3, tensor)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.3)
    generator = torch.Generator().manual_seed(60 + mesh.get_local_rank("data"))
    for step in range(8):
        x = torch.randn(10, 24, generator=generator)
        loss = nn.functional.mse_loss(model(x), 5 * x[:, :3])
        optimizer.zero_grad()
        loss.backward()
        for p in parameters:
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM, group=data)
            p.grad /= mesh["data"].size()
        norm = clip_by_global_norm(parameters, 0.5, tensor)
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"{step}: norm {norm:.3f}")
    dist.barrier()
    dist.destroy_process_group()


main()
