import datetime
import threading
import time

import torch
import torch.distributed as dist


def upload():
    for _ in range(60):
        time.sleep(0.5)


def log_metrics(rank, step):
    if rank == 1 and step == 2:
        raise PermissionError("metrics.csv")  # culprit


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
    threading.Thread(target=upload, name="uploader").start()
    for step in range(4):
        log_metrics(dist.get_rank(), step)
        dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
