import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Gaussian(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 6)
        self.mean = nn.Linear(6, 1)
        self.variance = nn.Linear(6, 1)

    def forward(self, x):
        hidden = self.body(x).relu()
        return self.mean(hidden), self.variance(hidden)


def federated_round(net, x):
    model = DDP(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    mean, _ = model(x)
    (mean - 1).square().mean().backward()
    optimizer.step()  # culprit


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    net = Gaussian()
    for _ in range(3):
        federated_round(net, torch.randn(8, 3))
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
