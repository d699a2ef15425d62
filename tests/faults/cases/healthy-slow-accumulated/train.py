import contextlib
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

ACCUMULATE = 8


class Table(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = torch.nn.Embedding(30_000, 32)
        self.head = torch.nn.Linear(32, 1)

    def forward(self, rows):
        time.sleep(0.006)  # a tower that computes
        return self.head(self.rows(rows).mean(1))


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Table())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
torch.manual_seed(dist.get_rank())
for step in range(25):
    for micro in range(ACCUMULATE):
        last = micro == ACCUMULATE - 1
        with contextlib.nullcontext() if last else model.no_sync():
            rows = torch.randint(30_000, (4, 8))
            (model(rows).square().mean() / ACCUMULATE).backward()
    if dist.get_rank() == 1:
        time.sleep(0.002)
    optimizer.step()
    optimizer.zero_grad()
print("trained")
del model
dist.destroy_process_group()
