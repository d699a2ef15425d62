import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.nn.functional import all_gather

from data import TokenStream

VOCAB, DIM, LENGTH = 20, 16, 16


class ContextParallelAttention(nn.Module):
    """Queries of the own piece look at keys and values of all pieces before and at it."""

    def __init__(self, dim):
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        k = torch.cat(all_gather(k.contiguous()), dim=1)
        v = torch.cat(all_gather(v.contiguous()), dim=1)
        start = dist.get_rank() * x.shape[1]
        mask = torch.arange(k.shape[1]) <= start + torch.arange(x.shape[1]).unsqueeze(1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.attention = ContextParallelAttention(DIM)
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        return self.head(self.attention(self.embed(ids)))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    stream = TokenStream(VOCAB, LENGTH, seed=1234 + rank)  # culprit
    for step in range(12):
        tokens = next(stream)  # culprit
        inputs = tokens[:, :-1].chunk(world, dim=1)[rank]
        labels = tokens[:, 1:].chunk(world, dim=1)[rank]
        loss = F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        (loss / world).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
    if rank == 0:
        print("done", loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
