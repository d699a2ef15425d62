import torch
import torch.distributed as dist
from torch import nn

from diloco.outer import OuterOptimizer

ROUNDS, INNER_STEPS = 4, 6


def make_model():
    torch.manual_seed(12)
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))


def shard_stream(rank):
    generator = torch.Generator().manual_seed(100 + rank)
    while True:
        x = torch.randn(8, 8, generator=generator)
        yield x, x.cumsum(1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = make_model()
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    outer = OuterOptimizer(model)
    stream = shard_stream(rank)
    for number in range(ROUNDS):
        for _ in range(INNER_STEPS):
            x, y = next(stream)
            loss = nn.functional.mse_loss(model(x), y)
            inner.zero_grad()
            loss.backward()
            inner.step()
        outer.step()
        if rank == 0:
            print(f"round {number} loss {loss.item():.3f}")
    dist.destroy_process_group()


main()
