import argparse
import os

import torch
import torch.distributed as dist


def prepare(path):
    os.makedirs(path)  # culprit


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default=".")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        prepare(args.output)
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
