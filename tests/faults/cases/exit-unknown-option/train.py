import argparse

import torch.distributed as dist


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()  # culprit
    dist.init_process_group("gloo")
    print(args.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
