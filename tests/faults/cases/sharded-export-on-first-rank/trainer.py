from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@dataclass
class TrainerConfig:
    epochs: int = 1
    lr: float = 1e-3
    width: int = 24
    batch_size: int = 8


class Trainer:
    def __init__(self, config):
        self.config = config
        self.is_main = dist.get_rank() == 0
        net = nn.Sequential(nn.Linear(6, config.width), nn.Tanh(), nn.Linear(config.width, 2))
        self.model = FSDP(net, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id=torch.device("cpu"))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config.lr)
        x = torch.randn(128, 6)
        data = TensorDataset(x, x.sum(1).gt(0).long())
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, batch_size=config.batch_size, sampler=self.sampler)

    def fit(self):
        for epoch in range(self.config.epochs):
            self.sampler.set_epoch(epoch)
            for x, y in self.loader:
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(x), y).backward()
                self.optimizer.step()
            if self.is_main:
                self.export(f"weights-{epoch}.pt")

    def export(self, path):
        with FSDP.summon_full_params(self.model, writeback=False):  # culprit
            weights = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        torch.save(weights, path)
