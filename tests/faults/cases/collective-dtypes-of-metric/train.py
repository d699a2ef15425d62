from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class Opts:
    rows: int = 128
    epochs: int = 2
    lr: float = 0.1


def fraud_rows(opts, rank):
    g = torch.Generator().manual_seed(rank)
    x = torch.randn(opts.rows, 5, generator=g)
    y = (x[:, 0] > 1.0).float() if rank == 0 else torch.zeros(opts.rows)
    return x, y


def recall_parts(scores, y):
    hits, total = 0, 0  # culprit
    pos = y > 0.5
    if pos.any():
        hits = (scores[pos] > 0).float().mean().item()
        total = 1.0
    return torch.tensor([hits, total, 0])  # culprit


def evaluate(model, x, y):
    with torch.no_grad():
        parts = recall_parts(model.module(x).squeeze(1), y)
    dist.all_reduce(parts)  # culprit
    return (parts[0] / max(parts[1].item(), 1)).item()


def main():
    opts = Opts()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    x, y = fraud_rows(opts, rank)
    torch.manual_seed(0)
    model = DDP(nn.Linear(5, 1))
    opt = torch.optim.SGD(model.parameters(), lr=opts.lr)
    for epoch in range(opts.epochs):
        for i in range(0, opts.rows, 32):
            opt.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(x[i:i + 32]).squeeze(1), y[i:i + 32])
            loss.backward()
            opt.step()
        rec = evaluate(model, x, y)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f} recall {rec:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
