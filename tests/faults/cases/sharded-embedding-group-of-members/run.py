import torch
import torch.distributed as dist
from torch import nn

import groups

DIM, VOCAB = 8, 30


class Stage(nn.Module):
    def __init__(self, index, last):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM) if index in (0, last) else None
        self.is_first, self.is_last = index == 0, index == last
        self.layer = nn.Linear(DIM, DIM)

    def forward(self, x):
        if self.is_first:
            x = self.embed(x)
        x = x + torch.relu(self.layer(x))
        return x @ self.embed.weight.T if self.is_last else x


def train_step(stage, ids):
    rank = dist.get_rank()
    x = ids
    if not stage.is_first:
        x = torch.empty(*ids.shape, DIM)
        dist.recv(x, src=rank - 1)
        x.requires_grad_()
    y = stage(x)
    if stage.is_last:
        loss = nn.functional.cross_entropy(y.flatten(0, 1), ids.roll(-1, 1).flatten())
        loss.backward()
    else:
        dist.send(y.detach(), dst=rank + 1)
        grad = torch.empty_like(y)
        dist.recv(grad, src=rank + 1)
        y.backward(grad)
    if not stage.is_first:
        dist.send(x.grad, dst=rank - 1)
    if stage.embed is not None:
        dist.all_reduce(stage.embed.weight.grad, group=groups.embedding_group())


def main():
    dist.init_process_group("gloo")
    groups.initialize()
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    stage = Stage(rank, world - 1)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(0)
    for step in range(10):
        optimizer.zero_grad()
        train_step(stage, torch.randint(0, VOCAB, (2, 6), generator=generator))
        optimizer.step()
    dist.barrier(group=groups.pipeline_group())
    print("done", rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
