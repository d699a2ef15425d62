from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

VOCAB, DIM = 40, 16


@dataclass
class Batch:
    ids: torch.Tensor
    pixels: torch.Tensor | None


class Mixed:
    """Every rank reads its own shard; some documents come without a picture."""

    def __init__(self, rank, steps):
        self.generator = torch.Generator().manual_seed(rank)
        self.rank, self.steps = rank, steps

    def __iter__(self):
        for step in range(self.steps):
            ids = torch.randint(0, VOCAB, (4, 9), generator=self.generator)
            pixels = torch.randn(4, 3, 6, 6, generator=self.generator)
            yield Batch(ids, None if (step + self.rank) % 9 == 8 else pixels)


class VisionTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, DIM, 3, stride=3)
        self.project = nn.Linear(DIM, DIM)

    def forward(self, pixels):
        return self.project(self.patch(pixels).flatten(2).mean(-1))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.vision = VisionTower()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.mixer = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, batch):
        h = self.embed(batch.ids[:, :-1])
        if batch.pixels is not None:
            h = h + self.vision(batch.pixels).unsqueeze(1)  # culprit
        return self.head(h + self.mixer(h))  # culprit


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Model()
    for part in (model.vision, model.mixer):
        fully_shard(part)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, batch in enumerate(Mixed(rank, 24)):
        logits = model(batch)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % 4 == 0:
            print(step, round(loss.item(), 3), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
