import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, recv, group):
        ctx.send, ctx.recv, ctx.group = send, recv, group
        out = x.new_empty((sum(recv), x.size(1)))
        dist.all_to_all_single(out, x.contiguous(), recv, send, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty((sum(ctx.send), grad.size(1)))
        dist.all_to_all_single(out, grad.contiguous(), ctx.send, ctx.recv, group=ctx.group)
        return out, None, None, None


class Expert(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class MoE(nn.Module):
    """One expert per rank of the expert-parallel group, top-1 routing."""

    def __init__(self, dim, hidden, ep_mesh):
        super().__init__()
        self.group = ep_mesh.get_group()
        self.ep = ep_mesh.size()
        self.gate = nn.Linear(dim, self.ep, bias=False)
        experts = [Expert(dim, hidden) for _ in range(self.ep)]
        self.expert = experts[ep_mesh.get_local_rank()]
        for p in self.expert.parameters():
            p.is_expert = True

    def forward(self, x):
        prob, choice = F.softmax(self.gate(x), dim=-1).max(dim=-1)
        order = choice.argsort(stable=True)
        send = torch.bincount(choice, minlength=self.ep)
        recv = torch.empty_like(send)
        dist.all_to_all_single(recv, send, group=self.group)
        send, recv = send.tolist(), recv.tolist()

        tokens = _AllToAll.apply(x[order], send, recv, self.group)
        tokens = self.expert(tokens)
        tokens = _AllToAll.apply(tokens, recv, send, self.group)
        out = torch.empty_like(tokens).index_copy(0, order, tokens)
        return out * prob.unsqueeze(-1)
