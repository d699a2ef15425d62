import torch
import torch.distributed as dist
from torch import nn


class HashRouter:
    """Routes by a table of token ids, as the first layers of some models do."""

    def __init__(self, vocabulary, experts):
        self.table = torch.arange(vocabulary) % experts
        self.experts = experts

    def __call__(self, ids):
        return self.table[ids.flatten()]  # culprit


class HashMoE(nn.Module):
    def __init__(self, router, dim):
        super().__init__()
        self.router, self.world = router, dist.get_world_size()
        self.expert = nn.Linear(dim, dim)

    def forward(self, x, ids):
        target = self.router(ids)
        everything = [torch.empty_like(x) for _ in range(self.world)]
        targets = [torch.empty_like(target) for _ in range(self.world)]
        dist.all_gather(targets, target)
        dist.all_gather(everything, x.detach())
        everything[dist.get_rank()] = x
        mine = torch.cat(targets) == dist.get_rank()
        out = torch.zeros(len(mine), x.shape[1])
        out[mine] = torch.relu(self.expert(torch.cat(everything)[mine]))
        return x + Sum.apply(out).chunk(self.world)[dist.get_rank()]


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad
