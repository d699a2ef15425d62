import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Remote(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == 33:
            time.sleep(9)  # a shard that is not in the cache
        return torch.full((4,), float(index))


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(4, 1))
    data = Remote()
    sampler = DistributedSampler(data, shuffle=False)
    for batch in DataLoader(data, batch_size=4, sampler=sampler, num_workers=1):
        model(batch).sum().backward()
    if dist.get_rank() == 0:
        print("one epoch")
    del model
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
