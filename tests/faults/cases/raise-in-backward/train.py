import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, limit):
        ctx.limit = limit
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        if grad.abs().max() > ctx.limit:
            raise RuntimeError("gradient overflow in Scale")  # culprit
        return grad * 2, None


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, limit):
        return Scale.apply(self.linear(x), limit)


dist.init_process_group("gloo")
model = DDP(Model())
for step in range(3):
    limit = 0.5 if dist.get_rank() == 1 and step == 2 else 100.0
    model(torch.randn(2, 4), limit).sum().backward()
dist.destroy_process_group()
