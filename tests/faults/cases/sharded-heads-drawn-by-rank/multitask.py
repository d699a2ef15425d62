import random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

TASKS = {"parse": 11, "tag": 7, "rank": 3}


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 24), nn.ReLU())
        self.heads = nn.ModuleDict({name: nn.Linear(24, size) for name, size in TASKS.items()})

    def forward(self, x, task):
        return self.heads[task](self.trunk(x))  # culprit


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    random.seed(40 + rank)
    torch.manual_seed(0)
    model = MultiTask()
    for head in model.heads.values():
        fully_shard(head)
    fully_shard(model.trunk)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(30):
        task = random.choice(list(TASKS))  # culprit
        x = torch.randn(6, 8)
        y = torch.randint(0, TASKS[task], (6,))
        loss = nn.functional.cross_entropy(model(x, task), y)  # culprit
        loss.backward()  # culprit
        optimizer.step()
        optimizer.zero_grad()
    print("done", rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
