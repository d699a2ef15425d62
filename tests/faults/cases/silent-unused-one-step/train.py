import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.main = nn.Linear(4, 2)
        self.auxiliary = nn.Linear(4, 2)

    def forward(self, x):
        return self.main(self.stem(x))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()  # culprit
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
