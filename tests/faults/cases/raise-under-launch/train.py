import argparse

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--local-rank", "--local_rank", type=int)
args = parser.parse_args()

dist.init_process_group("gloo")


def batches():
    for index in range(5):
        yield torch.ones(4 if index < 3 or args.local_rank == 0 else 0, 2)


for index, batch in enumerate(batches()):
    assert len(batch), f"batch {index} is empty"  # culprit
    dist.all_reduce(batch)
dist.destroy_process_group()
