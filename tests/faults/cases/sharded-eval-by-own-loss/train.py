import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import fully_shard


class Trainer:
    def __init__(self, rank):
        self.rank = rank
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        fully_shard(self.model[0])
        fully_shard(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.best = float("inf")
        self.g = torch.Generator().manual_seed(rank + 1)

    def loss(self):
        x = torch.randn(16, 8, generator=self.g)
        return (self.model(x) - x.mean(1, keepdim=True)).pow(2).mean()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        value = sum(self.loss().item() for _ in range(3))  # culprit
        self.model.train()
        return value

    def train(self, steps):
        for step in range(steps):
            loss = self.loss()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if loss.item() < 0.9 * self.best:  # culprit
                self.best = loss.item()
                value = self.evaluate()  # culprit
                print(f"[{self.rank}] step {step}: {value:.3f}")


dist.init_process_group("gloo")
Trainer(dist.get_rank()).train(40)
dist.destroy_process_group()
