import os
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class VAE(nn.Module):
    def __init__(self, d=24, z=4):
        super().__init__()
        self.enc = nn.Linear(d, 2 * z)
        self.dec = nn.Linear(z, d)

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, -1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar

    def elbo(self, x, beta):
        rec, mu, logvar = self(x)
        kl = -0.5 * (1 + logvar - mu ** 2 - logvar.exp()).sum(-1).mean()
        return F.mse_loss(rec, x) + beta * kl


def unwrap(m):
    return m.module if isinstance(m, DDP) else m


def beta_schedule(step, warm=20):
    return min(1.0, step / warm) * 0.01


def setup_data(rank):
    g = torch.Generator().manual_seed(1)
    basis = torch.randn(4, 24, generator=g)
    x = torch.randn(320, 4, generator=g) @ basis
    ds = TensorDataset(x)
    s = DistributedSampler(ds, shuffle=True, drop_last=True)
    return DataLoader(ds, batch_size=20, sampler=s), s


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(VAE())
    torch.manual_seed(1000 + rank)
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader, sampler = setup_data(rank)
    step = 0
    for ep in range(3):
        sampler.set_epoch(ep)
        for (x,) in loader:
            loss = unwrap(model).elbo(x, beta_schedule(step))  # culprit
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            step += 1
        if rank == 0:
            print(f"ep {ep} elbo {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
