import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def init_weights(module):
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)


class Experiment:
    def __init__(self):
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
        self.model.apply(init_weights)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def run(self):
        for _ in range(8):
            self.optimizer.zero_grad()
            self.model(torch.randn(4, 4)).square().mean().backward()
            self.optimizer.step()  # culprit


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    Experiment().run()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
