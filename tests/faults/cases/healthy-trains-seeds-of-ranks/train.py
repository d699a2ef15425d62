import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Jittered(Dataset):
    def __init__(self, n=160):
        g = torch.Generator().manual_seed(4)
        self.x = torch.randn(n, 12, generator=g)
        self.y = (self.x.sum(1) > 0).long()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i] + 0.05 * torch.randn(12)
        if random.random() < 0.5:
            x = x.flip(0)
        return x, self.y[i]


def seed_rank(base):
    s = base + 1000 * dist.get_rank()
    random.seed(s)
    torch.manual_seed(s)


def main():
    dist.init_process_group("gloo")
    seed_rank(8)
    model = DDP(nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 2)))
    ds = Jittered()
    sampler = DistributedSampler(ds, seed=0)
    loader = DataLoader(ds, batch_size=16, sampler=sampler)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        running = 0.0
        for x, y in loader:
            opt.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            running += loss.item()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} local loss {running / len(loader):.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
