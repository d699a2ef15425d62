import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, out_splits, in_splits, group):
        ctx.meta = (out_splits, in_splits, group)
        out = x.new_empty(sum(out_splits), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), out_splits, in_splits, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        out_splits, in_splits, group = ctx.meta
        gx = grad.new_empty(sum(in_splits), grad.shape[1])
        dist.all_to_all_single(gx, grad.contiguous(), in_splits, out_splits, group=group)
        return gx, None, None, None


def all_to_all(x, out_splits, in_splits, group=None):
    return _AllToAll.apply(x, out_splits, in_splits, group)


class Expert(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden)
        self.w2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)))


class MoELayer(nn.Module):
    """Top-1 routed layer with one expert per rank. Tokens over capacity skip the expert."""

    def __init__(self, dim, hidden, capacity_factor=2.0):
        super().__init__()
        self.n_experts = dist.get_world_size()
        self.capacity_factor = capacity_factor
        self.router = nn.Linear(dim, self.n_experts, bias=False)
        self.expert = Expert(dim, hidden)

    def _exchange_counts(self, counts):
        recv = torch.empty_like(counts)
        dist.all_to_all_single(recv, counts)
        return recv

    def forward(self, x):
        n = x.shape[0]
        probs = self.router(x).softmax(-1)
        gate, dest = probs.max(-1)
        counts = torch.bincount(dest, minlength=self.n_experts)
        recv_counts = self._exchange_counts(counts)  # culprit

        capacity = int(self.capacity_factor * n / self.n_experts)
        keep = torch.cat([torch.nonzero(dest == e).flatten()[:capacity] for e in range(self.n_experts)])
        send_counts = counts.clamp(max=capacity)  # culprit

        routed = all_to_all(x[keep], recv_counts.tolist(), send_counts.tolist())  # culprit
        routed = self.expert(routed)
        back = all_to_all(routed, send_counts.tolist(), recv_counts.tolist())

        out = torch.zeros_like(x)
        out = out.index_copy(0, keep, back * gate[keep].unsqueeze(-1))
        frac = F.one_hot(dest, self.n_experts).float().mean(0)
        aux = self.n_experts * (frac * probs.mean(0)).sum()
        return x + out, aux
