import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    saved = None
    for step in range(200):
        optimizer.zero_grad()
        model(torch.randn(4, 64)).sum().backward()  # culprit
        optimizer.step()
        if step % 2 == 0:
            saved = dcp.async_save({"model": model.state_dict()}, checkpoint_id=os.path.abspath(f"step-{step}"))
    saved.result()
    dist.destroy_process_group()


main()
