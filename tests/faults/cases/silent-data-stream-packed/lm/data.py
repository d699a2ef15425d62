import random

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


def documents(n=400):
    for i in range(n):
        r = random.Random(i)
        start = r.randrange(64)
        yield [(start + j * (1 + i % 3)) % 64 for j in range(r.randrange(10, 60))]


class PackedStream(IterableDataset):
    def __init__(self, block):
        self.block = block

    def __iter__(self):
        info = get_worker_info()
        wid, nw = (0, 1) if info is None else (info.id, info.num_workers)  # culprit
        buf = []
        for i, doc in enumerate(documents()):
            if i % nw != wid:  # culprit
                continue
            buf.extend(doc)
            while len(buf) > self.block:
                yield torch.tensor(buf[: self.block + 1])
                buf = buf[self.block:]


def packed_loader(block, bs):
    return DataLoader(PackedStream(block), batch_size=bs, num_workers=2, drop_last=True)
