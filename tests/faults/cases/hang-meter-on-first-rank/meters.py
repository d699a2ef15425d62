import torch
import torch.distributed as dist


class Meter:
    def __init__(self, name):
        self.name, self.total, self.count = name, 0.0, 0

    def update(self, value, n):
        self.total += value
        self.count += n

    def synchronize(self):
        if dist.is_initialized() and dist.get_world_size() > 1:
            t = torch.tensor([self.total, self.count], dtype=torch.float64)
            dist.all_reduce(t)  # culprit
            self.total, self.count = t.tolist()
        return self

    @property
    def avg(self):
        return self.total / max(self.count, 1)
