import functools
import glob
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
from torch.utils.data import DataLoader, IterableDataset


def write_files(folder, lengths):
    os.makedirs(folder, exist_ok=True)
    for number, length in enumerate(lengths):
        torch.save(torch.randn(length, 12), f"{folder}/part-{number}.pt")


class Parts(IterableDataset):
    def __init__(self, folder, rank, world):
        self.files = sorted(glob.glob(f"{folder}/part-*.pt"))[rank::world]

    def __iter__(self):
        for path in self.files:
            yield from torch.load(path, weights_only=True)


def train(model, loader, optimizer, rank):
    for step, x in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"rank {rank}: epoch finished after {step + 1} steps", flush=True)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        write_files("parts", [48, 40, 48, 40])
    dist.barrier()
    torch.manual_seed(0)
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=300)
    net = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 12))
    model = FSDP(net, auto_wrap_policy=policy, device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train(model, DataLoader(Parts("parts", rank, world), batch_size=8), optimizer, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
