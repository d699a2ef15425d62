import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Backbone(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.classifier = nn.Linear(16, classes)

    def forward(self, x):
        for block in self.blocks:
            x = x + F.silu(block(x))
        return self.classifier(x)

    def reset_classifier(self, classes):
        self.classifier = nn.Linear(16, classes)  # culprit


def shard(model, mesh):
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(5)
    model = shard(Backbone(), mesh)
    model.reset_classifier(3)  # culprit
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    feed = torch.Generator().manual_seed(dist.get_rank())
    for step in range(10):
        x = torch.randn(16, 16, generator=feed)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print("transferred", loss.item())
    dist.destroy_process_group()


main()
