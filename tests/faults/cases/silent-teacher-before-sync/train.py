import copy
import os
import random
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class Config:
    seed: int = 11
    epochs: int = 2
    batch: int = 16
    decay: float = 0.99
    lr: float = 0.05


def seed_everything(seed):
    random.seed(seed)
    torch.manual_seed(seed)


def build_net():
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))


def make_data():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(256, 20, generator=g)
    y = (x[:, :5].argmax(1))
    labelled = torch.arange(256) % 4 == 0
    return TensorDataset(x, y, labelled)


@torch.no_grad()
def ema_update(teacher, student, decay):
    for t, s in zip(teacher.parameters(), student.parameters()):
        t.mul_(decay).add_(s, alpha=1 - decay)


class SemiSupervised:
    def __init__(self, cfg):
        self.cfg = cfg
        rank = dist.get_rank()
        seed_everything(cfg.seed + rank)
        student = build_net()
        self.teacher = copy.deepcopy(student)  # culprit
        self.teacher.requires_grad_(False)
        self.student = DDP(student)
        self.opt = torch.optim.SGD(self.student.parameters(), lr=cfg.lr)
        ds = make_data()
        self.sampler = DistributedSampler(ds, seed=cfg.seed)
        self.loader = DataLoader(ds, cfg.batch, sampler=self.sampler)

    def step(self, x, y, has_label):
        logits = self.student(x + 0.1 * torch.randn_like(x))
        with torch.no_grad():
            target = self.teacher(x).softmax(-1)
        cons = F.mse_loss(logits.softmax(-1), target)
        sup = F.cross_entropy(logits[has_label], y[has_label]) if has_label.any() else logits.sum() * 0
        loss = sup + cons
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        ema_update(self.teacher, self.student.module, self.cfg.decay)
        return loss.item()

    def fit(self):
        for epoch in range(self.cfg.epochs):
            self.sampler.set_epoch(epoch)
            losses = [self.step(*b) for b in self.loader]
            if dist.get_rank() == 0:
                print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f}")


def main():
    dist.init_process_group("gloo")
    SemiSupervised(Config()).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
