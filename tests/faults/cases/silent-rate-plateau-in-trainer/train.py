import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Meter:
    def __init__(self):
        self.s, self.n = 0.0, 0

    def add(self, v, k):
        self.s += v * k
        self.n += k

    @property
    def value(self):
        return self.s / max(1, self.n)


class Trainer:
    def __init__(self, model, train_ds, val_ds, *, lr=0.02, bs=16):
        self.ddp = DDP(model)
        self.opt = torch.optim.SGD(self.ddp.parameters(), lr=lr, momentum=0.9)
        self.sched = ReduceLROnPlateau(self.opt, factor=0.5, patience=0)
        self.tr_sampler = DistributedSampler(train_ds)
        self.train_dl = DataLoader(train_ds, bs, sampler=self.tr_sampler)
        self.val_dl = DataLoader(val_ds, bs, sampler=DistributedSampler(val_ds, shuffle=False))

    def train_epoch(self):
        self.ddp.train()
        for x, y in self.train_dl:
            self.opt.zero_grad()
            nn.functional.mse_loss(self.ddp(x), y).backward()
            self.opt.step()

    @torch.no_grad()
    def validate(self):
        self.ddp.eval()
        m = Meter()
        for x, y in self.val_dl:
            m.add(nn.functional.mse_loss(self.ddp(x), y).item(), len(x))
        return m.value  # culprit

    def fit(self, epochs):
        for e in range(epochs):
            self.tr_sampler.set_epoch(e)
            self.train_epoch()
            val = self.validate()
            self.sched.step(val)  # culprit
            if dist.get_rank() == 0:
                print(f"{e}: val={val:.4f} lr={self.opt.param_groups[0]['lr']:.4g}")


def regression(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 10, generator=g)
    y = x[:, :1] - 2 * x[:, 1:2] + torch.randn(n, 1, generator=g) * (1 + 2 * (torch.arange(n) % 2))[:, None]
    return TensorDataset(x, y)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
    Trainer(net, regression(256, 1), regression(64, 2)).fit(8)
    dist.destroy_process_group()


main()
