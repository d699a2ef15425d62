import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Subset, TensorDataset


def get_data():
    g = torch.Generator().manual_seed(42)
    x = torch.randn(160, 10, generator=g)
    y = (x @ torch.randn(10, 3, generator=g)).argmax(1)
    data = TensorDataset(x, y)
    return Subset(data, range(128)), Subset(data, range(128, 160))


def shard_of(data, rank, world):
    return Subset(data, range(rank, len(data), world))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    counts = torch.zeros(2)
    for x, y in loader:
        counts[0] += (model(x).argmax(1) == y).sum()
        counts[1] += len(y)
    model.train()
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
    fully_shard(model[0])
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train_set, test_set = get_data()
    torch.manual_seed(rank)
    train_loader = DataLoader(shard_of(train_set, rank, world), batch_size=8, shuffle=True)
    test_loader = DataLoader(shard_of(test_set, rank, world), batch_size=8)
    for epoch in range(3):
        for x, y in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        accuracy = evaluate(model, test_loader)
        if rank == 0:
            print(f"epoch {epoch} accuracy {accuracy:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
