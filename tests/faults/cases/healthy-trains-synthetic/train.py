import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    began = time.time()
    for _ in range(30):
        x = torch.randn(8, 16)
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"done, {30 / (time.time() - began):.1f} steps/s")
    dist.destroy_process_group()


main()
