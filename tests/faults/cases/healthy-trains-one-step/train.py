import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Experts(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.heads = nn.ModuleList(nn.Linear(4, 2) for _ in range(count))

    def forward(self, x, which):
        return self.heads[which](self.stem(x))


def main():
    dist.init_process_group("gloo")
    model = DDP(Experts(dist.get_world_size() + 1), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 4), dist.get_rank()).sum().backward()
    optimizer.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
