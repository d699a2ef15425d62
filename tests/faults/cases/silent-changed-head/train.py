import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.fc = nn.Linear(8, classes)

    def forward(self, x):
        return self.fc(self.body(x).relu())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Net(10)
    net.fc.requires_grad_(False)
    model = DDP(net)  # culprit
    model.module.fc = nn.Linear(8, 3)  # culprit
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(4, 4)), torch.randint(3, (4,))).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
