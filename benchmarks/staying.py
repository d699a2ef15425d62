"""A rank that has taken a DDP step says so with a file of its own and stays until a file ``go`` is there: FOLDER."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

LIMIT_S = 120.0


def main() -> None:
    """Do what makes a rank as large as ranks are, then wait to be looked at."""
    import torch
    import torch.distributed as dist

    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    for _ in range(10):
        model(torch.ones(8, 64)).sum().backward()
        dist.all_reduce(torch.ones(1))
    (folder / f"{os.getpid()}.rank").touch()
    end = time.monotonic() + LIMIT_S
    while not (folder / "go").exists() and time.monotonic() < end:
        time.sleep(0.05)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
