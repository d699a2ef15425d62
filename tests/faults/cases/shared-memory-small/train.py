import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((1, 1024, 512), float(index))


def main():
    dist.init_process_group("gloo")
    model = DDP(nn.Conv1d(1024, 1, 1))
    for batch in DataLoader(Volumes(), batch_size=8, num_workers=2):
        model(batch[:, 0]).mean().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
