import argparse
import time
from datetime import timedelta

import torch.distributed as dist


def validate(rank):
    if rank == 1:
        time.sleep(20)  # writes its predictions first
        return
    dist.monitored_barrier(timeout=timedelta(seconds=5))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--local-rank", "--local_rank", type=int)
    parser.parse_args()
    dist.init_process_group("gloo")
    validate(dist.get_rank())
    dist.destroy_process_group()
