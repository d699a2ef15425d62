import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    teacher = net().requires_grad_(False)
    torch.manual_seed(1 + dist.get_rank())
    student = DDP(net())
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    for step in range(10):
        x = torch.randn(6, 4)
        with torch.no_grad():
            target = teacher(x).softmax(-1)
            confident = student.module(x).softmax(-1).max(-1).values
        loss = (nn.functional.cross_entropy(student(x), target, reduction="none") * (1 - confident)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
