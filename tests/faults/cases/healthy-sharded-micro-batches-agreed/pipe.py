import argparse
import math

import torch
import torch.distributed as dist
from torch import nn


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=14)
    parser.add_argument("--micro", type=int, default=4)
    return parser.parse_args()


class Stage:
    def __init__(self, index, count, width):
        self.index, self.first, self.last = index, index == 0, index == count - 1
        torch.manual_seed(index)
        self.net = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.width = width

    def run(self, batch, micro):
        kept = []
        for part in range(math.ceil(batch / micro)):
            if self.first:
                x = torch.randn(min(micro, batch - part * micro), self.width)
                y = self.net(x)
                dist.send(y.detach(), self.index + 1)
            else:
                x = torch.empty(min(micro, batch - part * micro), self.width)
                dist.recv(x, self.index - 1)
                x.requires_grad_()
                y = self.net(x)
            kept.append((x, y))
        for x, y in reversed(kept):
            if self.last:
                y.square().mean().backward()
                dist.send(x.grad, self.index - 1)
            else:
                grad = torch.empty_like(y)
                dist.recv(grad, self.index + 1)
                y.backward(grad)
        self.optimizer.step()
        self.optimizer.zero_grad()


def main():
    args = parse()
    dist.init_process_group("gloo")
    stage = Stage(dist.get_rank(), dist.get_world_size(), 8)
    for _ in range(5):
        stage.run(args.batch, args.micro)
    print("all steps made")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
