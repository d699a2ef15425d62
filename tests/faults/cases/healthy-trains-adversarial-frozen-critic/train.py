import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

bce = nn.functional.binary_cross_entropy_with_logits


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 24), nn.LeakyReLU(0.2), nn.Linear(24, o))


class GANTrainer:
    def __init__(self, zdim=4):
        torch.manual_seed(6)
        self.zdim = zdim
        self.G, self.D = DDP(mlp(zdim, 2)), DDP(mlp(2, 1))
        self.og = torch.optim.Adam(self.G.parameters(), 1e-3, betas=(0.5, 0.9))
        self.od = torch.optim.Adam(self.D.parameters(), 1e-3, betas=(0.5, 0.9))
        torch.manual_seed(600 + dist.get_rank())

    def d_step(self, real):
        with torch.no_grad():
            fake = self.G.module(torch.randn(len(real), self.zdim))
        out = self.D(torch.cat([real, fake]))
        lab = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])
        loss = bce(out, lab)
        self.od.zero_grad()
        loss.backward()
        self.od.step()
        return loss.item()

    def g_step(self, n):
        self.D.module.requires_grad_(False)
        fake = self.G(torch.randn(n, self.zdim))
        loss = bce(self.D.module(fake), torch.ones(n, 1))
        self.og.zero_grad()
        loss.backward()
        self.og.step()
        self.D.module.requires_grad_(True)
        return loss.item()


def main():
    dist.init_process_group("gloo")
    t = torch.rand(256, generator=torch.Generator().manual_seed(0)) * 6.28
    ds = TensorDataset(torch.stack([t.cos(), t.sin()], 1))
    sampler = DistributedSampler(ds)
    dl = DataLoader(ds, 32, sampler=sampler)
    tr = GANTrainer()
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for (real,) in dl:
            d, g = tr.d_step(real), tr.g_step(len(real))
        if dist.get_rank() == 0:
            print(f"epoch {epoch} d={d:.3f} g={g:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
