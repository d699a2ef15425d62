import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Codebook(nn.Module):
    def __init__(self, size=16, width=8, decay=0.95):
        super().__init__()
        self.decay = decay
        self.register_buffer("codes", torch.randn(size, width))
        self.register_buffer("counts", torch.ones(size))

    def forward(self, z):
        distances = torch.cdist(z, self.codes)
        index = distances.argmin(1)
        quantized = self.codes[index]
        if self.training:
            with torch.no_grad():
                hot = nn.functional.one_hot(index, len(self.codes)).float()
                count, total = hot.sum(0), hot.T @ z
                dist.all_reduce(count)
                dist.all_reduce(total)
                self.counts.mul_(self.decay).add_(count, alpha=1 - self.decay)
                self.codes.mul_(self.decay).add_(
                    total / self.counts.clamp_min(1e-3)[:, None], alpha=1 - self.decay
                )
        commit = (z - quantized.detach()).square().mean()
        return z + (quantized - z).detach(), commit


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))
        self.codebook = Codebook()
        self.decoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32))

    def forward(self, x):
        z, commit = self.codebook(self.encoder(x))
        return self.decoder(z), commit


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(Model(), broadcast_buffers=False)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    data = TensorDataset(torch.randn(1024, 32))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 32, sampler=sampler)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            out, commit = model(x)
            loss = (out - x).square().mean() + 0.25 * commit
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print("epoch", epoch, "loss", round(loss.item(), 4))
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "model.pt")
    dist.destroy_process_group()


main()
