import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, receive):
        ctx.sizes = (send, receive)
        out = x.new_empty(sum(receive), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), receive, send)
        return out

    @staticmethod
    def backward(ctx, grad):
        send, receive = ctx.sizes
        out = grad.new_empty(sum(send), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), send, receive)
        return out, None, None


class MoE(nn.Module):
    """One expert per rank, top-1 routing."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.router = nn.Linear(dim, dist.get_world_size(), bias=False)
        with torch.random.fork_rng():
            torch.manual_seed(1000 + dist.get_rank())
            self.expert = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
        for p in self.expert.parameters():
            p.is_expert = True

    def forward(self, x):
        weight, index = self.router(x).softmax(-1).max(-1)
        order = index.argsort(stable=True)
        counts = torch.bincount(index, minlength=dist.get_world_size())
        incoming = torch.empty_like(counts)
        dist.all_to_all_single(incoming, counts)
        send, receive = counts.tolist(), incoming.tolist()
        tokens = AllToAll.apply(x[order], send, receive)
        back = AllToAll.apply(self.expert(tokens), receive, send)
        out = torch.zeros_like(x).index_copy(0, order, back)
        return x + out * weight.unsqueeze(1)


def reduce_gradients(model):
    world = dist.get_world_size()
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        if not getattr(p, "is_expert", False):
            dist.all_reduce(p.grad)
        p.grad.div_(world)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), MoE(16, 32), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = torch.Generator().manual_seed(50 + dist.get_rank())
    for step in range(10):
        x = torch.randn(24, 8, generator=data)
        y = x[:, :4].argmax(1)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        reduce_gradients(model)
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
