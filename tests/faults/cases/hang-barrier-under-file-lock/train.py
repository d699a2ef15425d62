import contextlib
import fcntl
import json
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CACHE = os.path.join(tempfile.gettempdir(), f"vocab_{os.getppid()}.json")


@contextlib.contextmanager
def file_lock(path):
    with open(path + ".lock", "w") as fh:
        fcntl.flock(fh, fcntl.LOCK_EX)  # culprit
        try:
            yield
        finally:
            fcntl.flock(fh, fcntl.LOCK_UN)


def build_vocab():
    words = "the quick brown fox jumps over the lazy dog".split()
    return {w: i for i, w in enumerate(sorted(set(words)))}


def get_vocab():
    with file_lock(CACHE):  # culprit
        if not os.path.exists(CACHE):
            with open(CACHE, "w") as f:
                json.dump(build_vocab(), f)
        dist.barrier()  # culprit
        with open(CACHE) as f:
            return json.load(f)


class Bag(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.e = nn.EmbeddingBag(n, 8)
        self.o = nn.Linear(8, 2)

    def forward(self, x):
        return self.o(self.e(x))


def main():
    dist.init_process_group("gloo")
    vocab = get_vocab()
    torch.manual_seed(1)
    model = DDP(Bag(len(vocab)))
    opt = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(10):
        g = torch.Generator().manual_seed(step * 10 + dist.get_rank())
        x = torch.randint(0, len(vocab), (8, 4), generator=g)
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 3).long())
        opt.zero_grad()
        loss.backward()
        opt.step()
    if dist.get_rank() == 0:
        print("loss", loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
