from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn

from comm import GatherFromSequence, ReduceScatterToSequence


@dataclass
class ModelConfig:
    hidden: int = 16
    layers: int = 2
    sequence: int = 8


class Layer(nn.Module):
    def __init__(self, config, number):
        super().__init__()
        world, rank = dist.get_world_size(), dist.get_rank()
        self.norm = nn.LayerNorm(config.hidden)
        weights = torch.Generator().manual_seed(17 * number + rank)
        wide = 4 * config.hidden // world
        self.w_in = nn.Parameter(0.1 * torch.randn(wide, config.hidden, generator=weights))
        self.w_out = nn.Parameter(0.1 * torch.randn(config.hidden, wide, generator=weights))

    def forward(self, x):
        full = GatherFromSequence.apply(self.norm(x))
        partial = torch.relu(full @ self.w_in.T) @ self.w_out.T
        return x + ReduceScatterToSequence.apply(partial)


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    config = ModelConfig()
    model = Model(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    data = torch.Generator().manual_seed(1)
    steps = 15
    for _ in range(steps):
        x = torch.randn(config.sequence, 4, config.hidden, generator=data)
        y = x.cumsum(0)
        loss = (model(x.chunk(world)[rank]) - y.chunk(world)[rank]).pow(2).sum() / y.numel()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # culprit
    dist.all_reduce(loss.detach_())
    if rank == 0:
        print(f"trained for {steps} steps, loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
