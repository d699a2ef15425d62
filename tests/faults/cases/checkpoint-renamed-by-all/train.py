import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Snapshots:
    """Keeps the newest state; a file is written beside it first, so that a half-written one is never loaded."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def keep(self, model, step):
        draft = self.folder / "newest.tmp"
        torch.save({"model": model.module.state_dict(), "step": step}, draft)  # culprit
        os.rename(draft, self.folder / "newest.pt")


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    snapshots = Snapshots(folder[0])
    for step in range(200):
        batch = torch.randn(8, 256)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        snapshots.keep(model, step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
