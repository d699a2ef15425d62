import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@dataclass(frozen=True)
class DiffusionConfig:
    T: int = 50
    dim: int = 8
    hidden: int = 48
    bs: int = 32
    epochs: int = 3
    seed: int = 2024


class NoisePredictor(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.temb = nn.Embedding(c.T, c.hidden)
        self.inp = nn.Linear(c.dim, c.hidden)
        self.out = nn.Linear(c.hidden, c.dim)

    def forward(self, x, t):
        return self.out(torch.relu(self.inp(x) + self.temb(t)))


class Scheduler:
    def __init__(self, T, generator):
        betas = torch.linspace(1e-4, 0.1, T)
        self.abar = torch.cumprod(1 - betas, 0)
        self.T = T
        self.g = generator

    def corrupt(self, x0):
        t = torch.randint(0, self.T, (len(x0),), generator=self.g)
        eps = torch.randn(x0.shape, generator=self.g)
        a = self.abar[t][:, None]
        return a.sqrt() * x0 + (1 - a).sqrt() * eps, t, eps


def dataset(c):
    g = torch.Generator().manual_seed(0)
    centers = torch.randn(4, c.dim, generator=g) * 2
    return TensorDataset(centers[torch.arange(512) % 4] + 0.1 * torch.randn(512, c.dim, generator=g))


def main(c=DiffusionConfig()):
    dist.init_process_group("gloo")
    torch.manual_seed(c.seed)
    ds = dataset(c)
    sampler = DistributedSampler(ds, seed=c.seed)
    dl = DataLoader(ds, c.bs, sampler=sampler, drop_last=True)
    net = DDP(NoisePredictor(c))
    sched = Scheduler(c.T, torch.Generator().manual_seed(c.seed))  # culprit
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    for ep in range(c.epochs):
        sampler.set_epoch(ep)
        tot = torch.zeros(1)
        for (x0,) in dl:
            xt, t, eps = sched.corrupt(x0)
            loss = (net(xt, t) - eps).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            tot += loss.detach()
        dist.reduce(tot, 0)
        if dist.get_rank() == 0:
            print(f"epoch {ep} mse {tot.item() / len(dl) / dist.get_world_size():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
