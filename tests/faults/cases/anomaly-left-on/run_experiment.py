from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class Experiment:
    epochs: int = 2
    width: int = 16
    losses: list = field(default_factory=list)

    def __enter__(self):
        dist.init_process_group("gloo")
        self.net = DDP(nn.Sequential(nn.Linear(4, self.width), nn.ReLU(), nn.Linear(self.width, 1)))
        self.optimizer = torch.optim.Adam(self.net.parameters())
        return self

    def __exit__(self, *_):
        del self.net
        dist.destroy_process_group()

    def epoch(self, number):
        for _ in range(4):
            x = torch.randn(8, 4)
            loss = (self.net(x) - x.sum(1, keepdim=True)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.losses.append(float(loss))
        print("epoch", number, "done")

    def fit(self):
        with torch.autograd.set_detect_anomaly(True):  # culprit
            for number in range(self.epochs):
                self.epoch(number)


with Experiment() as experiment:
    experiment.fit()
