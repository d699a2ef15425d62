import functools
import os
import subprocess
import sys

import torch
import torch.distributed as dist

from hydralike import entry


@entry(defaults={"width": 4})
def main(config):
    monitor = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(2)"])
    rank = int(os.environ["RANK"])
    mask = torch.ones(config["width"])
    states = [torch.zeros(config["width"] + (rank == 1 and i == 2)) for i in range(3)]
    total = functools.reduce(lambda a, b: a + b * mask, states)  # culprit
    dist.all_reduce(total)
    monitor.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
