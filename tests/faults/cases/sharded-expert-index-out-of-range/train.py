import torch
import torch.distributed as dist
from torch import nn

from moe import HashMoE, HashRouter

VOCAB, DIM, BATCH = 64, 8, 12


def read_batches(rank, steps):
    generator = torch.Generator().manual_seed(rank)
    for step in range(steps):
        ids = torch.randint(0, VOCAB, (BATCH,), generator=generator)
        if rank == 2 and step == 6:
            ids[3] = VOCAB + 2
        yield ids


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    embed = nn.Embedding(VOCAB + 4, DIM)
    layer = HashMoE(HashRouter(VOCAB, dist.get_world_size()), DIM)
    head = nn.Linear(DIM, VOCAB + 4)
    shared = [*embed.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD([*shared, *layer.parameters()], lr=0.1)
    for step, ids in enumerate(read_batches(rank, 12)):
        loss = nn.functional.cross_entropy(head(layer(embed(ids), ids)), ids)
        optimizer.zero_grad()
        loss.backward()
        for p in shared:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
        if rank == 0:
            print(f"{step} {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
