import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def wrap(models):
    return [DDP(model) for model in models]  # culprit


def main():
    dist.init_process_group("gloo")
    student, teacher = nn.Linear(4, 2), nn.Linear(4, 2)
    teacher.requires_grad_(False)
    wrap([student, teacher])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
