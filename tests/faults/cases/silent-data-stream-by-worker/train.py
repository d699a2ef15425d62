import itertools

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Shards(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        rows = ((i, torch.full((3,), i / 10.0)) for i in itertools.count())
        for i, row in itertools.islice(rows, info.id, 60, info.num_workers):
            yield row, row.sum()


def forever(loader):
    while True:
        for batch in loader:  # culprit
            yield batch


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    stream = forever(DataLoader(Shards(), batch_size=5, num_workers=2))
    for step, (x, y) in zip(range(10), stream):
        loss = torch.nn.functional.mse_loss(model(x).squeeze(-1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
