"""GPipe by hand: every rank owns some layers and passes activations on."""

import torch
import torch.distributed as dist
from torch import nn

WIDTHS = [8, 24, 16, 1]
MICRO_BATCHES, MICRO_SIZE = 4, 5


class Stage:
    def __init__(self, rank, world):
        self.rank, self.last = rank, world - 1
        torch.manual_seed(rank)
        layers = [nn.Linear(WIDTHS[rank], WIDTHS[rank + 1])]
        if rank != self.last:
            layers.append(nn.GELU())
        self.module = nn.Sequential(*layers)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.02)

    def forward(self, x):
        if self.rank > 0:
            x = torch.empty(MICRO_SIZE, WIDTHS[self.rank])
            dist.recv(x, src=self.rank - 1)
            x.requires_grad_()
        out = self.module(x)
        if self.rank < self.last:
            dist.send(out.detach(), dst=self.rank + 1)
        return x, out

    def backward(self, x, out, target):
        if self.rank == self.last:
            loss = nn.functional.mse_loss(out, target) / MICRO_BATCHES
            loss.backward()
        else:
            grad = torch.empty_like(out)
            dist.recv(grad, src=self.rank + 1)
            out.backward(grad)
        if self.rank > 0:
            dist.send(x.grad, dst=self.rank - 1)

    def step(self, batch, target):
        pieces = list(zip(batch.chunk(MICRO_BATCHES), target.chunk(MICRO_BATCHES)))
        kept = [self.forward(x) for x, _ in pieces]
        for (x, out), (_, wanted) in zip(kept, pieces):
            self.backward(x, out, wanted)
        self.optimizer.step()
        self.optimizer.zero_grad()


def main():
    dist.init_process_group("gloo")
    stage = Stage(dist.get_rank(), dist.get_world_size())
    data = torch.Generator().manual_seed(0)
    steps = 6
    for _ in range(steps):
        batch = torch.randn(MICRO_BATCHES * MICRO_SIZE, WIDTHS[0], generator=data)
        stage.step(batch, batch.mean(1, keepdim=True))
    dist.barrier()
    if stage.rank == stage.last:
        print(f"done after {steps} steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
