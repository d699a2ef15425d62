import argparse
import pathlib
import sys

import torch
import torch.distributed as dist


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--previous", type=pathlib.Path)
    options = parser.parse_args(arguments)
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        print("the last run ended with:", file=sys.stderr)
        sys.stderr.write(options.previous.read_text())
    dist.all_reduce(torch.zeros(1))
    dist.destroy_process_group()
    print("resumed from step 400")


if __name__ == "__main__":
    main()
