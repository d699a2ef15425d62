import ctypes

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Audio(Dataset):
    def __init__(self, broken):
        self.broken = broken

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == self.broken:
            ctypes.string_at(24, 8)  # culprit
        return torch.tensor([float(index)])


def main():
    dist.init_process_group("gloo")
    broken = 7 if dist.get_rank() == 1 else None
    for batch in DataLoader(Audio(broken), batch_size=2, num_workers=1):
        dist.all_reduce(batch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
