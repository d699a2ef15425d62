from threading import Condition, Thread

import torch
import torch.distributed as dist


class Buffer:
    def __init__(self):
        self.ready = Condition()
        self.items = []

    def put(self, item):
        with self.ready:
            self.items.append(item)
            self.ready.notify()

    def take(self, limit):
        with self.ready:
            if not self.ready.wait_for(lambda: self.items, timeout=limit):
                raise TimeoutError(f"no batch within {limit} s")
            return self.items.pop(0)


def fill(buffer, weights):
    for weight in weights:
        buffer.put(torch.ones(3) / (1 // weight))  # culprit


dist.init_process_group("gloo")
weights = [1, 1, 1, 1] if dist.get_rank() else [1, 1, 0, 1]
buffer = Buffer()
Thread(target=fill, args=(buffer, weights), daemon=True).start()
for _ in weights:
    batch = buffer.take(3)
    dist.all_reduce(batch)
dist.destroy_process_group()
