import torch
import torch.distributed as dist
from torch import nn

from tensor_parallel import Groups, MLP


class Optimizer:
    """SGD with averaging over replicas and clipping."""

    def __init__(self, model, groups, lr, clip):
        self.parameters = list(model.parameters())
        self.groups, self.clip = groups, clip
        self.inner = torch.optim.SGD(self.parameters, lr=lr)

    def average(self):
        for p in self.parameters:
            dist.all_reduce(p.grad, group=self.groups.data)
            p.grad /= self.groups.data_size

    def step(self):
        self.average()
        norm = torch.cat([p.grad.flatten() for p in self.parameters]).norm()  # culprit
        factor = min(1.0, self.clip / (norm.item() + 1e-6))
        for p in self.parameters:
            p.grad *= factor  # culprit
        self.inner.step()
        self.inner.zero_grad()
        return norm.item()


def main():
    dist.init_process_group("gloo")
    groups = Groups(tensor_size=2)
    model = MLP(16, groups)
    optimizer = Optimizer(model, groups, lr=0.1, clip=0.2)
    data = torch.Generator().manual_seed(groups.data_rank)
    for step in range(12):
        x = torch.randn(8, 16, generator=data)
        loss = nn.functional.mse_loss(model(x), 3 * x)
        loss.backward()
        norm = optimizer.step()  # culprit
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.3f} norm {norm:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
