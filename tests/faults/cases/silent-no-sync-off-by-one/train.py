from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accumulate = 4
    torch.manual_seed(dist.get_rank())
    for i in range(32):
        with nullcontext() if i % accumulate == 0 else model.no_sync():
            loss = model(torch.randn(3, 6)).square().mean() / accumulate
            loss.backward()
        if (i + 1) % accumulate == 0:
            optimizer.step()  # culprit
            optimizer.zero_grad()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
