import contextlib

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard


class ShardedEMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {n: p.detach().to_local().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model):
        for name, p in model.named_parameters():
            self.shadow[name].lerp_(p.to_local(), 1 - self.decay)

    @contextlib.contextmanager
    def applied(self, model):
        backup = {n: p.detach().to_local().clone() for n, p in model.named_parameters()}
        self._write(model, self.shadow)
        try:
            yield
        finally:
            self._write(model, backup)

    @torch.no_grad()
    def _write(self, model, values):
        model.reshard()
        for name, p in model.named_parameters():
            p.to_local().copy_(values[name])


def make_model():
    model = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 1))
    for child in (model[0], model[2]):
        fully_shard(child)
    return fully_shard(model)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    model = make_model()
    ema = ShardedEMA(model, decay=0.9)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    g = torch.Generator().manual_seed(900 + rank)
    held_out = torch.randn(16, 4, generator=torch.Generator().manual_seed(77 + rank))
    for step in range(20):
        x = torch.randn(8, 4, generator=g)
        loss = F.mse_loss(model(x), x.abs().sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update(model)
        if (step + 1) % 10 == 0:
            with torch.no_grad(), ema.applied(model):
                value = F.mse_loss(model(held_out), held_out.abs().sum(1, keepdim=True))
            dist.all_reduce(value)
            if rank == 0:
                print(f"step {step + 1} ema loss {value.item() / world:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
