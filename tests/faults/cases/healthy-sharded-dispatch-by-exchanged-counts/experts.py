import torch
import torch.distributed as dist
from torch import nn


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, receive):
        ctx.sizes = send, receive
        out = x.new_empty(sum(receive), *x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), receive, send)
        return out

    @staticmethod
    def backward(ctx, grad):
        send, receive = ctx.sizes
        out = grad.new_empty(sum(send), *grad.shape[1:])
        dist.all_to_all_single(out, grad.contiguous(), send, receive)
        return out, None, None


def route(tokens, expert, world):
    order = expert.argsort(stable=True)
    send = torch.bincount(expert, minlength=world)
    receive = torch.empty_like(send)
    dist.all_to_all_single(receive, send)
    return order, send.tolist(), receive.tolist()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    gate, head = nn.Linear(8, world), nn.Linear(8, 3)
    torch.manual_seed(100 + rank)
    expert = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    shared = [*gate.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam([*shared, *expert.parameters()], lr=1e-3)
    for step in range(10):
        tokens = torch.randn(24, 8)
        scores = gate(tokens).softmax(-1)
        # Nearly all tokens like the first expert.
        chosen = (scores + torch.tensor([0.3] + [0.0] * (world - 1))).argmax(-1)
        order, send, receive = route(tokens, chosen, world)
        results = AllToAll.apply(expert(AllToAll.apply(tokens[order], send, receive)), receive, send)
        mixed = tokens[order] + results * scores[order, chosen[order]].unsqueeze(1)
        loss = nn.functional.cross_entropy(head(mixed), tokens[order, :3].argmax(-1))
        optimizer.zero_grad()
        (loss / world).backward()
        for p in shared:
            dist.all_reduce(p.grad)
        optimizer.step()
    print("all steps made")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
