import torch
import torch.distributed as dist


class Mean:
    def __init__(self):
        self.total = torch.zeros(2)

    def update(self, values):
        self.total += torch.tensor([values.sum(), len(values)])

    def compute(self):
        dist.all_reduce(self.total)  # culprit
        return self.total[0] / self.total[1]
