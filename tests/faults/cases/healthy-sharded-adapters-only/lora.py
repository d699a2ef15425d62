import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class LoRALinear(nn.Module):
    def __init__(self, base, rank=4, alpha=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        self.scale = alpha / rank
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.scale * self.up(self.down(x))


class Backbone(nn.Module):
    def __init__(self, width=16, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.score = nn.Linear(width, 2)

    def forward(self, x):
        for block in self.blocks:
            x = self.norm(x + torch.relu(block(x)))
        return self.score(x)


def add_adapters(model):
    model.requires_grad_(False)
    for i, block in enumerate(model.blocks):
        model.blocks[i] = LoRALinear(block)
    model.score.requires_grad_(True)
    return model


def shard(model):
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = shard(add_adapters(Backbone()))
    trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
    before = {n: p.to_local().clone() for n, p in model.named_parameters() if not p.requires_grad}
    optimizer = torch.optim.AdamW(trainable.values(), lr=1e-2, weight_decay=0.0)
    g = torch.Generator().manual_seed(rank + 10)
    for _ in range(8):
        x = torch.randn(8, 16, generator=g)
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > x[:, 1]).long())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    for n, p in model.named_parameters():
        if n in before:
            assert torch.equal(before[n], p.to_local()), n
    if rank == 0:
        print(f"{len(trainable)} trainable, {len(before)} frozen, loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
