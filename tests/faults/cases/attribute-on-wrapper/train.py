import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 4)

    def forward(self, x):
        return self.out(x)

    def generate(self, x):
        return self.out(x).argmax(-1)


def evaluate(model):
    return model.generate(torch.randn(1, 4))  # culprit


def main():
    dist.init_process_group("gloo")
    model = DDP(Language())
    model(torch.randn(2, 4)).sum().backward()
    print(evaluate(model))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
