import sys

import torch
import torch.distributed as dist
from torch import nn

from recipe.checkpoints import Checkpoints


class Network(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, classes)


def main(arguments):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    store = Checkpoints(f"best-{rank}.pt")
    store.save(Network(classes=10))
    store.load(Network(classes=12))


if __name__ == "__main__":
    main(sys.argv[1:])
