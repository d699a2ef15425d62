from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard


@dataclass
class Config:
    micro_batches: int = 4
    steps: int = 6
    width: int = 16


class Loop:
    def __init__(self, config: Config):
        self.config = config
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(config.width, 32), nn.ReLU(), nn.Linear(32, config.width))
        for layer in (self.model[0], self.model[2]):
            fully_shard(layer)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.noise = torch.Generator().manual_seed(dist.get_rank())

    def micro_batches(self):
        for index in range(self.config.micro_batches):
            last = index == self.config.micro_batches  # culprit
            yield last, torch.randn(4, self.config.width, generator=self.noise)

    def step(self):
        self.optimizer.zero_grad()
        total = 0.0
        for last, x in self.micro_batches():
            if isinstance(self.model, FSDPModule):
                self.model.set_requires_gradient_sync(last)  # culprit
            loss = (self.model(x) - x).square().mean() / self.config.micro_batches
            loss.backward()
            total += loss.item()
        self.optimizer.step()  # culprit
        return total


if __name__ == "__main__":
    dist.init_process_group("gloo")
    loop = Loop(Config())
    losses = [loop.step() for _ in range(loop.config.steps)]
    if dist.get_rank() == 0:
        print("losses", losses)
    dist.destroy_process_group()
