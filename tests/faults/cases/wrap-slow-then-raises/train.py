import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Lazy(torch.nn.Module):
    """Reads its weights from a slow disk when they are asked for."""

    def __init__(self, width):
        super().__init__()
        self.layer = torch.nn.Linear(8, width)

    def named_parameters(self, *args, **kwargs):
        time.sleep(4)
        return super().named_parameters(*args, **kwargs)


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Lazy(4 if dist.get_rank() == 0 else 6))  # culprit
    print(model)


main()
