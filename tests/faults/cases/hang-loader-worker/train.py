import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if self.rank == 1 and index == 24:
            self.wait_for_mount()
        return torch.ones(4)

    def wait_for_mount(self):
        while True:
            time.sleep(3600)  # culprit


def train():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(4, 1))
    for batch in DataLoader(Images(dist.get_rank()), batch_size=4, num_workers=1):
        model(batch).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    train()
