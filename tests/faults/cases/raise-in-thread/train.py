import queue
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Prefetcher(threading.Thread):
    def __init__(self, rank):
        super().__init__(name="prefetch", daemon=True)
        self.rank = rank
        self.batches = queue.Queue(2)

    def run(self):
        for number in range(100):
            raw = b"caf\xc3\xa9" if number != 5 or self.rank != 1 else b"caf\xe9"
            text = raw.decode("utf-8")  # culprit
            self.batches.put(torch.full((2, 4), float(len(text))))


dist.init_process_group("gloo")
prefetcher = Prefetcher(dist.get_rank())
prefetcher.start()
model = DDP(nn.Linear(4, 1))
for step in range(20):
    batch = prefetcher.batches.get(timeout=4)
    model(batch).mean().backward()
dist.destroy_process_group()
