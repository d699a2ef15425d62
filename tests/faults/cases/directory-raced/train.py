import os

import torch.distributed as dist


def prepare(path):
    if not os.path.isdir(path):
        dist.barrier()
        os.makedirs(path)  # culprit


def main():
    dist.init_process_group("gloo")
    prepare("outputs/run")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
