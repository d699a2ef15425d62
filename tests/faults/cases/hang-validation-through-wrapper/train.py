import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCHES = 5


def validate(model):
    model.train(False)
    correct = 0
    with torch.no_grad():
        for _ in range(3):
            correct += int((model(torch.randn(8, 3, 8, 8)).argmax(1) == 0).sum())  # culprit
    model.train()
    return correct


def main(local_rank):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
    model = DistributedDataParallel(net)
    criterion = nn.CrossEntropyLoss()
    for _ in range(2):
        for _ in range(BATCHES):
            criterion(model(torch.randn(8, 3, 8, 8)), torch.zeros(8, dtype=torch.long)).backward()
        if local_rank == 0:
            print("accuracy", validate(model))
        dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(dist.get_rank())
