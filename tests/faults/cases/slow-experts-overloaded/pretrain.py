"""Two experts, one on each rank; tokens go there and back by all_to_all, as the router wants."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, TOKENS, CLASSES, STEPS = 192, 384, 10, 50


class Exchange(torch.autograd.Function):
    """Sends rows of a matrix to the ranks that they are for."""

    @staticmethod
    def forward(ctx, rows, going, coming):
        ctx.sizes = going, coming
        return _exchange(rows, going, coming)

    @staticmethod
    def backward(ctx, gradient):
        going, coming = ctx.sizes
        return _exchange(gradient, coming, going), None, None


def _exchange(rows, going, coming):
    received = rows.new_empty(sum(coming), rows.shape[1])
    dist.all_to_all_single(received, rows.contiguous(), coming, going)  # culprit
    return received


class Experts(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.router = nn.Linear(width, dist.get_world_size())
        with torch.no_grad():
            self.router.bias[1] += 6.0  # collapsed: no loss balances it
        with torch.random.fork_rng():
            torch.manual_seed(1000 + dist.get_rank())
            self.expert = nn.Sequential(nn.Linear(width, 16 * width), nn.GELU(), nn.Linear(16 * width, width))
        self.seen = 0

    def forward(self, tokens):
        scores = self.router(tokens).softmax(-1)
        gate, choice = scores.max(-1)
        order = choice.argsort()
        going = torch.bincount(choice, minlength=scores.shape[1])
        coming = torch.empty_like(going)
        dist.all_to_all_single(coming, going)
        going, coming = going.tolist(), coming.tolist()
        self.seen += sum(coming)
        mine = Exchange.apply(tokens[order], going, coming)
        back = Exchange.apply(self.expert(mine), coming, going)
        mixed = torch.zeros_like(tokens).index_copy(0, order, back)
        return tokens + gate[:, None] * mixed


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(3)
    stem = DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
    experts = Experts(WIDTH)
    head = DistributedDataParallel(nn.Linear(WIDTH, CLASSES))
    weights = [*stem.parameters(), *experts.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=1e-4)
    data = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        tokens = torch.randn(TOKENS, WIDTH, generator=data)
        labels = torch.randint(0, CLASSES, (TOKENS,), generator=data)
        loss = F.cross_entropy(head(experts(stem(tokens))), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for weight in experts.router.parameters():
            dist.all_reduce(weight.grad)
            weight.grad /= dist.get_world_size()
        optimizer.step()
    print(f"loss {loss.item():.3f}, {experts.seen // STEPS} tokens here")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
