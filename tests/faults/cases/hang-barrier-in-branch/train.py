import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def maybe_checkpoint(model, loss, step):
    if loss < 0.5:
        dist.barrier()  # culprit
        if dist.get_rank() == 0:
            torch.save(model.module.state_dict(), f"{step}.pt")


def train(steps=12):
    rank = dist.get_rank()
    model = DDP(nn.Linear(4, 1))
    for step in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        local_loss = 0.4 if (rank, step) == (1, 7) else 0.9
        maybe_checkpoint(model, local_loss, step)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()
