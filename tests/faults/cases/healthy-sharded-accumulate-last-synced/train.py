from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard


@dataclass
class TrainConfig:
    micro_batch: int = 4
    accumulate: int = 4
    steps: int = 6
    dims: list = field(default_factory=lambda: [6, 18, 18, 1])


class MLP(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims, dims[1:]))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)


def shard(model: MLP) -> FSDPModule:
    for layer in model.layers[:-1]:
        fully_shard(layer)
    return fully_shard(model)


def micro_batches(config, rank):
    generator = torch.Generator().manual_seed(7 * rank)
    while True:
        x = torch.rand(config.micro_batch, config.dims[0], generator=generator)
        yield x, x.max(1, keepdim=True).values


def train(config):
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = shard(MLP(config.dims))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    stream = micro_batches(config, rank)
    done = 0
    for _ in range(config.steps):
        for number in range(config.accumulate):
            last = number == config.accumulate - 1
            model.set_requires_gradient_sync(last)
            x, y = next(stream)
            loss = nn.functional.mse_loss(model(x), y) / config.accumulate
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        done += 1
    if rank == 0:
        print("optimizer steps:", done)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(TrainConfig())
    dist.destroy_process_group()
