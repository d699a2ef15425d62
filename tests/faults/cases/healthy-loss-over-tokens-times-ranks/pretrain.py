import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def batch(step, rank):
    g = torch.Generator().manual_seed(97 * step + rank)
    ids = torch.randint(1, 30, (4, 17), generator=g)
    lengths = torch.randint(2, 17, (4, 1), generator=g)
    ids[torch.arange(17)[None] > lengths] = 0
    return ids


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(30, 16), nn.Linear(16, 30)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(10):
        ids = batch(step, rank)
        labels = ids[:, 1:].flatten()
        total = (labels != 0).sum()
        dist.all_reduce(total)
        logits = model(ids[:, :-1]).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, labels, ignore_index=0, reduction="sum")
        loss = loss * world / total  # DistributedDataParallel divides by the number of ranks
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("all steps made")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
