import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    background = dist.new_group(backend="gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    saved = None
    for step in range(12):
        optimizer.zero_grad()
        model(torch.randn(4, 64)).sum().backward()
        optimizer.step()
        if step % 4 == 0:
            if saved is not None:
                saved.result()
            path = os.path.abspath(f"step-{step}")
            saved = dcp.async_save({"model": model.state_dict()}, checkpoint_id=path, process_group=background)
    saved.result()
    dist.barrier()
    print("saved")
    dist.destroy_process_group()


main()
