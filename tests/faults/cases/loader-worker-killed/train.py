import os
import signal

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if self.rank == 0 and index == 21:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor([float(index)])


def main():
    dist.init_process_group("gloo")
    for batch in DataLoader(Rows(dist.get_rank()), batch_size=4, num_workers=1):
        dist.all_reduce(batch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
