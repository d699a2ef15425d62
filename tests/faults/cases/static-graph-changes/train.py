import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Warmup(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x, warm):
        x = self.first(x)
        return self.second(x) if warm else x


def main(args):
    dist.init_process_group("gloo")
    model = DDP(Warmup(), static_graph=True)
    for step in range(args.steps):
        model(torch.randn(2, 4), step >= 2).sum().backward()  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    main(parser.parse_args())
