import datetime

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    scores = [torch.zeros(2) for _ in range(3)]
    if rank == 2:
        dist.all_gather(scores, torch.ones(2))  # culprit
    dist.monitored_barrier(timeout=datetime.timedelta(minutes=10))
    dist.destroy_process_group()


main()
