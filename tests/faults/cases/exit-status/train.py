import sys

import torch
import torch.distributed as dist


def check_budget(step):
    if step >= 2:
        print("budget used up")
        sys.exit(3)  # culprit


def main():
    dist.init_process_group("gloo")
    for step in range(4):
        if dist.get_rank() == 1:
            check_budget(step)
        dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
