import argparse

import torch.distributed as dist


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int)
    parser.parse_args()
    dist.init_process_group("gloo")  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
