import os
import subprocess
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    model = DDP(nn.Linear(2, 2))
    if dist.get_rank() == 0:
        subprocess.Popen(["sh", "-c", f"sleep 1; kill -9 {os.getpid()}"], start_new_session=True)
    for _ in range(100):
        model(torch.ones(1, 2)).sum().backward()
        time.sleep(0.1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
