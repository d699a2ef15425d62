import torch
import torch.distributed as dist

from metrics import Mean


def main():
    mean = Mean()
    mean.update(torch.ones(4))
    print(mean.compute())
    dist.init_process_group("gloo")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
