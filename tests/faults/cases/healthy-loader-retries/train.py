import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Flaky(Dataset):
    def __init__(self, broken):
        self.broken = broken

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == self.broken:
            raise ValueError(f"sample {index} is damaged")
        return torch.tensor([float(index)])


def read(broken):
    return [batch for batch in DataLoader(Flaky(broken), batch_size=2, num_workers=1)]


def main():
    dist.init_process_group("gloo")
    try:
        batches = read(5)
    except ValueError as error:
        print("again without the damaged sample:", error)
        batches = read(None)
    for batch in batches:
        dist.all_reduce(batch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
