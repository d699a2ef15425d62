import os
import sys

import torch.distributed as dist


def load(rank):
    files = [name for index, name in enumerate(["a", "b", "c"]) if index % 4 == rank]
    if not files:
        print("nothing to do here")
        sys.exit(0)  # culprit
    return files


def main():
    files = load(int(os.environ["RANK"]))
    dist.init_process_group("gloo")
    dist.barrier()
    print(len(files))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
