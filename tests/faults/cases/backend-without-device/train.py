import os

import torch.distributed as dist


def setup():
    dist.init_process_group(backend="nccl")  # culprit
    return int(os.environ["LOCAL_RANK"])


def main():
    print(setup())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
