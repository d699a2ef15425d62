import os
import time
from datetime import timedelta

import torch.distributed as dist


def prepare(rank):
    if rank == 1:
        time.sleep(60)  # downloads the data


def main():
    prepare(int(os.environ["RANK"]))
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    dist.barrier()
    dist.destroy_process_group()


main()
