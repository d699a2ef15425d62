import random

import torch
from torch.utils.data import IterableDataset, get_worker_info


class ShuffledShards(IterableDataset):
    """Shards in an order that changes by epoch; workers share them."""

    def __init__(self, shards, seed, rows=16):
        self.shards, self.seed, self.rows, self.epoch = shards, seed, rows, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _read(self, shard):
        generator = torch.Generator().manual_seed(shard)
        for x in torch.randn(self.rows, 10, generator=generator):
            yield x, x.sum()

    def __iter__(self):
        order = list(range(self.shards))
        random.Random(self.seed + self.epoch).shuffle(order)
        info = get_worker_info()
        if info is not None:
            order = order[info.id :: info.num_workers]
        for shard in order:
            yield from self._read(shard)
