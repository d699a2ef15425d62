import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import checkpoints


def main():
    dist.init_process_group("gloo")
    model = DDP(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)))
    model(torch.randn(2, 3)).sum().backward()
    checkpoints.save(model, "last.pt")
    dist.barrier()
    fresh = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    checkpoints.load(fresh, "last.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
