import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class StochasticDepth(nn.Module):
    def __init__(self, dim, depth, drop, seed):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(dim, dim), nn.GELU()) for _ in range(depth))
        self.head = nn.Linear(dim, 1)
        self.drop = drop
        self.coin = torch.Generator().manual_seed(seed)

    def forward(self, x):
        for block in self.blocks:
            if self.training and torch.rand((), generator=self.coin) < self.drop:
                continue
            x = x + block(x)
        return self.head(x)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = StochasticDepth(dim=8, depth=4, drop=0.3, seed=1234)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.randn(80, 8)
    data = TensorDataset(x, x.norm(dim=1, keepdim=True))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    torch.manual_seed(rank)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, wanted in loader:
            noisy = inputs + 0.01 * torch.randn_like(inputs)
            loss = nn.functional.mse_loss(model(noisy), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
