import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def read_settings(rank):
    settings = {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.0}
    if rank == 1:  # an older file is still there
        settings["weight_decay"] = 0.1
    return settings


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), **read_settings(rank))
    torch.manual_seed(rank)
    for _ in range(12):
        x = torch.randn(8, 8)
        loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # culprit
    if rank == 0:
        print("done", loss.item())
    dist.destroy_process_group()


main()
