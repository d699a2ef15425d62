import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh

from moe import MoE

DIM, HIDDEN, TOKENS = 12, 24, 32


class Model(nn.Module):
    def __init__(self, ep_mesh):
        super().__init__()
        self.inp = nn.Linear(DIM, DIM)
        self.moe = MoE(DIM, HIDDEN, ep_mesh)
        self.out = nn.Linear(DIM, DIM)

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        return self.out(h + self.moe(h))


def average_grads(model, dp_group, edp_group):
    for p in model.parameters():
        group = edp_group if getattr(p, "is_expert", False) else dp_group  # culprit
        dist.all_reduce(p.grad, group=group)  # culprit
        p.grad /= dist.get_world_size(group)  # culprit


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("edp", "ep"))
    torch.manual_seed(31)
    model = Model(mesh["ep"])
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    gen = torch.Generator().manual_seed(rank)
    for step in range(6):
        x = torch.randn(TOKENS, DIM, generator=gen)
        loss = (model(x) - x.abs()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        average_grads(model, dist.group.WORLD, mesh["edp"].get_group())  # culprit
        opt.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            grads = {n: round(p.grad.norm().item(), 6) for n, p in model.named_parameters() if "weight" in n}
            print(f"step {step} loss {mean.item() / dist.get_world_size():.6f} {grads}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
