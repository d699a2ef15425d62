import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import fully_shard

from callbacks import WeightNorms, Writer


class Encoder(nn.Module):
    def __init__(self, dim, depth):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        return self.out(x)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = Encoder(16, 2)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    callbacks = [WeightNorms(Writer() if rank == 0 else None, every=5)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    for step in range(1, 31):
        x = torch.randn(8, 16)
        loss = (model(x) - x.amax(1, keepdim=True)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for callback in callbacks:
            callback.after_step(step, model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
