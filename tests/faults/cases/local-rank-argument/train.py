import argparse

import torch.distributed as dist


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=0)  # culprit
    parser.add_argument("--batch", type=int, default=8)
    return parser.parse_args()  # culprit


if __name__ == "__main__":
    options = parse()
    dist.init_process_group("gloo")
    dist.destroy_process_group()
