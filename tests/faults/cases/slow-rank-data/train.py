import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Shards(Dataset):
    """Samples in three files, the second of which lies on a disk that is nearly full."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index % 3 == 1:
            time.sleep(0.006)
        return torch.arange(32).add(index).sin(), torch.tensor([index % 7 / 7])


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = Shards(3 * 4 * 45)
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for x, y in loader:  # culprit
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print("epoch done")
    dist.destroy_process_group()


main()
