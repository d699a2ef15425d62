import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class _GatherSeq(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=0)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size(), dim=0)[dist.get_rank()].contiguous()


class _ReduceScatterSeq(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x.chunk(dist.get_world_size(), dim=0)[dist.get_rank()].contiguous()

    @staticmethod
    def backward(ctx, grad):
        parts = [torch.empty_like(grad) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, grad.contiguous())
        return torch.cat(parts, dim=0)


class SPLayerNorm(nn.LayerNorm):
    def __init__(self, hidden):
        super().__init__(hidden)
        for p in self.parameters():
            p.sequence_parallel = True


class ShardedExpert(nn.Module):
    def __init__(self, hidden, ffn):
        super().__init__()
        world, rank = dist.get_world_size(), dist.get_rank()
        up, down = torch.randn(ffn, hidden) * 0.2, torch.randn(hidden, ffn) * 0.2
        self.up = nn.Parameter(up.chunk(world, dim=0)[rank].clone())
        self.down = nn.Parameter(down.chunk(world, dim=1)[rank].clone())

    def forward(self, x):
        return F.linear(F.gelu(F.linear(x, self.up)), self.down)


class SwitchMLP(nn.Module):
    def __init__(self, hidden, ffn, num_experts):
        super().__init__()
        self.router = nn.Linear(hidden, num_experts, bias=False)  # culprit
        self.experts = nn.ModuleList(ShardedExpert(hidden, ffn) for _ in range(num_experts))

    def forward(self, x):
        scores = F.softmax(self.router(x), dim=-1)
        prob, choice = scores.max(dim=-1)
        full, choice_all = _GatherSeq.apply(x), self._gather_index(choice)
        out = torch.zeros_like(full)
        for i, expert in enumerate(self.experts):
            rows = (choice_all == i).nonzero().flatten()
            out = out.index_add(0, rows, expert(full[rows]))
        return _ReduceScatterSeq.apply(out) * prob.unsqueeze(-1)

    @staticmethod
    def _gather_index(choice):
        parts = [torch.empty_like(choice) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, choice.contiguous())
        return torch.cat(parts)
