import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

TP_SIZE = 2


def make_tp_group():
    rank, world = dist.get_rank(), dist.get_world_size()
    for first in range(0, world, TP_SIZE):
        ranks = list(range(first, first + TP_SIZE))
        group = dist.new_group(ranks)
        if rank in ranks:
            mine = group
    return mine


class SumOfParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part, group):
        total = part.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class ShardedFFN(nn.Module):
    def __init__(self, dim, hidden, group):
        super().__init__()
        self.group = group
        self.index = dist.get_rank(group)
        first, second = torch.empty(hidden, dim), torch.empty(dim, hidden)
        nn.init.xavier_uniform_(first)
        nn.init.xavier_uniform_(second)
        self.first = nn.Parameter(first.chunk(TP_SIZE, 0)[self.index].clone())
        self.second = nn.Parameter(second.chunk(TP_SIZE, 1)[self.index].clone())

    def forward(self, x):
        partial = torch.relu(x @ self.first.T) @ self.second.T
        return x + SumOfParts.apply(partial, self.group)


class Model(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.ffn = ShardedFFN(12, 48, group)
        self.head = nn.Linear(12, 2)

    def forward(self, x):
        return self.head(self.ffn(x))


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    group = make_tp_group()
    torch.manual_seed(0)
    model = DDP(Model(group))  # culprit
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(128, 12, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, x[:, :2])
    sampler = DistributedSampler(data, num_replicas=dist.get_world_size() // TP_SIZE, rank=rank // TP_SIZE)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if rank == 0:
        print(f"Finished with {loss.item():.4f}")
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
