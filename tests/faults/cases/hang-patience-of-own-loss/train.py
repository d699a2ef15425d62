import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class EarlyStopping:
    def __init__(self, patience=2, min_delta=1e-3):
        self.patience, self.min_delta = patience, min_delta
        self.best, self.wait = None, 0

    def should_stop(self, value):
        if self.best is None or value < self.best - self.min_delta:
            self.best, self.wait = value, 0
        else:
            self.wait += 1
        return self.wait >= self.patience


class Experiment:
    def __init__(self):
        self.rank = dist.get_rank()
        torch.manual_seed(2)
        self.model = DDP(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.stopper = EarlyStopping()
        self.val = self.sample(999, 0.1 + 2.0 * self.rank)

    def sample(self, seed, noise=0.5):
        g = torch.Generator().manual_seed(seed * 3 + self.rank)
        x = torch.randn(20, 5, generator=g)
        return x, x[:, :1] + noise * torch.randn(20, 1, generator=g)

    def epoch(self, e):
        for i in range(4):
            x, y = self.sample(e * 4 + i)
            self.opt.zero_grad()
            nn.functional.mse_loss(self.model(x), y).backward()
            self.opt.step()

    def validate(self):
        self.model.eval()
        with torch.no_grad():
            out = nn.functional.mse_loss(self.model(self.val[0]), self.val[1]).item()
        self.model.train()
        return out

    def run(self, max_epochs=60):
        for e in range(max_epochs):
            self.epoch(e)
            if self.stopper.should_stop(self.validate()):  # culprit
                break  # culprit
        dist.barrier()
        return e


def main():
    dist.init_process_group("gloo")
    last = Experiment().run()
    if dist.get_rank() == 0:
        print("stopped after", last)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
