import time
from pathlib import Path

import torch
import torch.distributed as dist


def clear(path):
    if path.exists():
        time.sleep(0.4 * (1 + dist.get_rank()))
        path.unlink()  # culprit


def main():
    dist.init_process_group("gloo")
    path = Path("features.cache")
    if dist.get_rank() == 0:
        path.write_text("features of another data set")
    dist.barrier()
    clear(path)
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
