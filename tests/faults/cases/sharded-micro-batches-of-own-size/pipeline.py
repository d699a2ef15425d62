import torch
import torch.distributed as dist
from torch import nn

DIM, MICRO = 16, 4


def make_stage(rank):
    torch.manual_seed(rank)
    if rank == 2:
        return nn.Linear(DIM, 1)
    return nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU())


class Pipeline:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.module = make_stage(self.rank)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.01)

    def split(self, batch):
        if self.rank == self.world - 1:
            return [c for c in batch.split(MICRO) if len(c) == MICRO]
        pad = -len(batch) % MICRO
        return torch.cat([batch, batch[:pad]]).split(MICRO)

    def train_step(self, batch):
        saved = []
        for micro in self.split(batch):
            x = micro
            if self.rank > 0:
                x = torch.empty(MICRO, DIM)
                dist.recv(x, src=self.rank - 1)
                x.requires_grad_()
            y = self.module(x)
            if self.rank < self.world - 1:
                dist.send(y.detach(), dst=self.rank + 1)  # culprit
            saved.append((x, y, micro))
        for x, y, micro in reversed(saved):
            if self.rank == self.world - 1:
                (y - micro.sum(1, keepdim=True)).square().mean().backward()
            else:
                grad = torch.empty_like(y)
                dist.recv(grad, src=self.rank + 1)
                y.backward(grad)
            if self.rank > 0:
                dist.send(x.grad, dst=self.rank - 1)  # culprit
        self.optimizer.step()
        self.optimizer.zero_grad()


def main():
    dist.init_process_group("gloo")
    pipeline = Pipeline()
    data = torch.randn(94, DIM, generator=torch.Generator().manual_seed(0))
    for epoch in range(2):
        for batch in data.split(20):
            pipeline.train_step(batch)
        if pipeline.rank == 2:
            print("epoch", epoch, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
