import contextlib
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Ema:
    def __init__(self, net, decay=0.9):
        self.shadow, self.decay = copy.deepcopy(net).eval(), decay

    @torch.no_grad()
    def update(self, net):
        for s, p in zip(self.shadow.parameters(), net.parameters()):
            s.lerp_(p, 1 - self.decay)


class Loop:
    def __init__(self, model, loader, sampler, accum):
        self.model, self.loader, self.sampler, self.accum = model, loader, sampler, accum
        self.opt = torch.optim.SGD(model.parameters(), 0.1)
        self.ema = Ema(model.module) if dist.get_rank() == 0 else None

    def epoch(self, e):
        self.sampler.set_epoch(e)
        n = len(self.loader)
        for i, (x, y) in enumerate(self.loader):
            last = (i + 1) % self.accum == 0 or i + 1 == n
            window = self.accum if i < n // self.accum * self.accum else n % self.accum
            with contextlib.nullcontext() if last else self.model.no_sync():
                loss = nn.functional.cross_entropy(self.model(x), y)
                (loss / window).backward()
            if last:
                self.opt.step()
                self.opt.zero_grad()
                if self.ema:
                    self.ema.update(self.model.module)
        return loss.item()

    def fit(self, epochs, target=0.3):
        for e in range(epochs):
            loss = self.epoch(e)
            flag = torch.tensor([int(dist.get_rank() == 0 and loss < target)])
            dist.broadcast(flag, src=0)
            if flag.item():
                break
        if self.ema:
            torch.save(self.ema.shadow.state_dict(), "average.pt")
            print("stopped at", e, "loss", loss)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(4)
    x = torch.randn(300, 8, generator=torch.Generator().manual_seed(1))
    ds = TensorDataset(x, (x[:, 0] > 0).long())
    s = DistributedSampler(ds)
    Loop(DDP(nn.Linear(8, 2)), DataLoader(ds, 16, sampler=s), s, 4).fit(8)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
