"""Denoising autoencoder on sensor windows, FSDP (full shard)."""
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class Config:
    window: int = 32
    dim: int = 64
    layers: int = 3
    batch_size: int = 16
    epochs: int = 4
    samples: int = 1024
    lr: float = 1e-3
    spike_factor: float = 6.0
    seed: int = 0


class SensorWindows(Dataset):
    """Sine windows; now and then a channel saturates, as in the field recordings."""

    def __init__(self, cfg):
        g = torch.Generator().manual_seed(cfg.seed)
        phase = torch.rand(cfg.samples, 1, generator=g) * 6.28
        freq = 0.1 + torch.rand(cfg.samples, 1, generator=g) * 0.4
        self.clean = torch.sin(phase + freq * torch.arange(cfg.window))
        self.clean[517] *= 60.0
        self.noisy = self.clean + 0.2 * torch.randn(self.clean.shape, generator=g)

    def __len__(self):
        return len(self.clean)

    def __getitem__(self, i):
        return self.noisy[i], self.clean[i]


class ResBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 2 * dim)
        self.fc2 = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.fc2(torch.relu(self.fc1(self.norm(x))))


class Denoiser(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.inp = nn.Linear(cfg.window, cfg.dim)
        self.blocks = nn.Sequential(*[ResBlock(cfg.dim) for _ in range(cfg.layers)])
        self.out = nn.Linear(cfg.dim, cfg.window)

    def forward(self, x):
        return self.out(self.blocks(self.inp(x)))


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank = dist.get_rank()
        torch.manual_seed(cfg.seed)
        self.model = FSDP(
            Denoiser(cfg),
            auto_wrap_policy=ModuleWrapPolicy({ResBlock}),
            sharding_strategy=ShardingStrategy.FULL_SHARD,
            device_id=torch.device("cpu"),
            use_orig_params=True,
        )
        self.opt = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.loss_ema = None
        self.skipped = 0
        self.step = 0

    def is_spike(self, value):
        if self.loss_ema is None:
            self.loss_ema = value
            return False
        if self.step > 10 and value > self.cfg.spike_factor * self.loss_ema:
            return True
        self.loss_ema = 0.95 * self.loss_ema + 0.05 * value
        return False

    def train_epoch(self, loader):
        for noisy, clean in loader:
            self.step += 1
            self.opt.zero_grad()
            loss = nn.functional.mse_loss(self.model(noisy), clean)
            if self.is_spike(loss.item()):  # culprit
                self.skipped += 1
                continue  # culprit
            loss.backward()
            self.model.clip_grad_norm_(1.0)
            self.opt.step()
            if self.rank == 0 and self.step % 16 == 0:
                print(f"step {self.step} loss {loss.item():.4f} skipped {self.skipped}", flush=True)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    cfg = Config()
    data = SensorWindows(cfg)
    sampler = DistributedSampler(data, shuffle=True, seed=cfg.seed)
    loader = DataLoader(data, cfg.batch_size, sampler=sampler, drop_last=True)
    trainer = Trainer(cfg)
    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        trainer.train_epoch(loader)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
