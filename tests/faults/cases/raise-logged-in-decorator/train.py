import torch
import torch.distributed as dist

from guard import guarded


def label(names, index):
    return len(names[index])  # culprit


@guarded
def train(rank):
    dist.init_process_group("gloo")
    names = ["cat", "horse"][: 2 - rank]
    for index in range(2):
        dist.all_reduce(torch.tensor(label(names, index)))
    dist.destroy_process_group()


if __name__ == "__main__":
    import os

    train(int(os.environ["RANK"]))
