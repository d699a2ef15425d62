import os
import pathlib

import torch
import torch.distributed as dist


def read_prompts(path):
    with open(path) as prompts:  # culprit
        return [line.strip() for line in prompts]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    source = pathlib.Path("prompts.txt")
    if rank == 2:
        source = pathlib.Path(f"prompts-{rank}")
        os.mkfifo(source)
    else:
        source.touch()
    dist.barrier()
    prompts = read_prompts(source)
    count = torch.tensor([len(prompts)])
    dist.all_reduce(count)
    dist.destroy_process_group()


main()
