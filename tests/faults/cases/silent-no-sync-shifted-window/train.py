import contextlib
import os
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@dataclass
class TrainingArguments:
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 4
    num_train_epochs: int = 2
    learning_rate: float = 0.05
    logging_steps: int = 4
    seed: int = 42


def get_dataset():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(512, 16, generator=g)
    return TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())


class Trainer:
    def __init__(self, model, args, train_dataset):
        self.args = args
        self.model = DDP(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=args.learning_rate)
        self.sampler = DistributedSampler(train_dataset, seed=args.seed)
        self.dataloader = DataLoader(train_dataset, args.per_device_train_batch_size, sampler=self.sampler)
        self.global_step = 0

    def maybe_no_sync(self, i):
        if (i + 1) % self.args.gradient_accumulation_steps != 0:  # culprit
            return self.model.no_sync()
        return contextlib.nullcontext()

    def training_step(self, i, batch):
        x, y = batch
        with self.maybe_no_sync(i):
            loss = nn.functional.cross_entropy(self.model(x), y)
            (loss / self.args.gradient_accumulation_steps).backward()
        return loss.detach()

    def train(self):
        for epoch in range(self.args.num_train_epochs):
            self.sampler.set_epoch(epoch)
            for i, batch in enumerate(self.dataloader):
                loss = self.training_step(i, batch)
                if i % self.args.gradient_accumulation_steps == 0:  # culprit
                    self.optimizer.step()  # culprit
                    self.optimizer.zero_grad()
                    self.global_step += 1
                    if self.global_step % self.args.logging_steps == 0:
                        self.log(loss)

    def log(self, loss):
        loss = loss.clone()
        dist.all_reduce(loss)
        if dist.get_rank() == 0:
            print({"step": self.global_step, "loss": round(loss.item() / dist.get_world_size(), 4)})


def main():
    dist.init_process_group("gloo")
    args = TrainingArguments()
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    Trainer(model, args, get_dataset()).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
