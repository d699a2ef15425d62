"""One forward, one backward, over two stages."""

import torch
import torch.distributed as dist
from torch import nn

BATCH, DIM, MICRO_BATCHES = 64, 2048, 4


class FirstStage:
    def __init__(self):
        self.module = nn.Linear(8, DIM)
        self.waiting = []

    def forward(self, x):
        y = self.module(x)
        self.waiting.append(y)
        dist.send(y.detach(), dst=1)  # culprit

    def backward(self):
        grad = torch.empty(BATCH, DIM)
        dist.recv(grad, src=1)
        self.waiting.pop(0).backward(grad)

    def run(self, batches):
        warm_up = 2
        for x in batches[:warm_up]:
            self.forward(x)
        for x in batches[warm_up:]:
            self.forward(x)
            self.backward()
        for _ in range(warm_up):
            self.backward()


class LastStage:
    def __init__(self):
        self.module = nn.Linear(DIM, 1)

    def run(self, batches):
        for _ in batches:
            x = torch.empty(BATCH, DIM)
            dist.recv(x, src=0)
            x.requires_grad_()
            self.module(x).square().mean().backward()
            dist.send(x.grad, dst=0)  # culprit


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    stage = FirstStage() if dist.get_rank() == 0 else LastStage()
    optimizer = torch.optim.SGD(stage.module.parameters(), lr=1e-3)
    for step in range(3):
        stage.run(torch.randn(MICRO_BATCHES, BATCH, 8))
        optimizer.step()
        optimizer.zero_grad()
        print(f"stage {dist.get_rank()} finished step {step}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
