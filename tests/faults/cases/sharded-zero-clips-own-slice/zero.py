import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class SlicedAdam:
    """Each rank holds the optimizer of a slice of the flat parameters, as in ZeRO stage 2."""

    def __init__(self, module, lr, max_norm):
        self.module, self.max_norm = module, max_norm
        self.world, self.rank = dist.get_world_size(), dist.get_rank()
        flat = parameters_to_vector(module.parameters()).detach()
        self.size = -(-flat.numel() // self.world)
        self.pad = self.size * self.world - flat.numel()
        flat = torch.cat([flat, flat.new_zeros(self.pad)])
        self.slice = nn.Parameter(flat[self.rank * self.size :][: self.size].clone())
        self.inner = torch.optim.Adam([self.slice], lr=lr)

    def step(self):
        grads = torch.cat([p.grad.flatten() for p in self.module.parameters()] + [torch.zeros(self.pad)])
        own = torch.empty(self.size)
        dist.reduce_scatter_tensor(own, grads)
        self.slice.grad = own.div_(self.world)
        torch.nn.utils.clip_grad_norm_([self.slice], self.max_norm)  # culprit
        self.inner.step()
        whole = torch.empty(self.size * self.world)
        dist.all_gather_into_tensor(whole, self.slice.detach())
        vector_to_parameters(whole[: whole.numel() - self.pad], self.module.parameters())
        self.module.zero_grad()


def train():
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 1))
    opt = SlicedAdam(net, lr=1e-3, max_norm=0.1)
    noise = torch.Generator().manual_seed(50 + dist.get_rank())
    for iteration in range(12):
        x = torch.randn(32, 20, generator=noise)
        y = x[:, :3].sum(1, keepdim=True) * 4
        loss = (net(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
        if iteration % 4 == 3 and dist.get_rank() == 0:
            print(f"iteration {iteration + 1} loss {loss.item():.3f}")


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
