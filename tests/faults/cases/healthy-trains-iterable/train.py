import itertools

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __init__(self, rank, world, length):
        self.rank, self.world, self.length = rank, world, length

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        shard, shards = self.rank * workers + worker, self.world * workers
        for i in itertools.islice(range(self.length), shard, None, shards):
            yield torch.full((4,), i / self.length), torch.tensor([float(i % 2)])


def main():
    dist.init_process_group("gloo")
    stream = Stream(dist.get_rank(), dist.get_world_size(), 96)
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for x, y in DataLoader(stream, batch_size=6, num_workers=2):
            optimizer.zero_grad()
            torch.nn.functional.binary_cross_entropy_with_logits(model(x), y).backward()
            optimizer.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
