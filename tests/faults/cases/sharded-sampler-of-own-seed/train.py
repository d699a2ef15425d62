import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_seed():
    return 1000 + hash(os.getpid()) % 997  # culprit


class Run:
    def __init__(self, seed):
        torch.manual_seed(0)
        data = TensorDataset(torch.randn(160, 8))
        self.sampler = DistributedSampler(data, seed=seed)  # culprit
        self.loader = DataLoader(data, batch_size=10, sampler=self.sampler)  # culprit
        self.model = fully_shard(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8)))
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def epoch(self, number):
        self.sampler.set_epoch(number)
        for (x,) in self.loader:  # culprit
            loss = (self.model(x) - x).pow(2).mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.item()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    run = Run(make_seed())
    for number in range(2):
        last = run.epoch(number)
    if dist.get_rank() == 0:
        print("two epochs", last)
    dist.destroy_process_group()
