import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset, random_split
from torch.utils.data.distributed import DistributedSampler


class Backbone(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(3))
        self.head = nn.Linear(dim, 1000)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        return self.head(x)


def load_backbone():
    """Stands for a download of pretrained weights."""
    torch.manual_seed(0)
    model = Backbone()
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = load_backbone()
    torch.manual_seed(1)
    model.head = nn.Linear(16, 4)  # culprit
    x = torch.randn(160, 16)
    data = TensorDataset(x, x.view(160, 4, 4).sum(-1).argmax(-1))
    train_set, held_out = random_split(data, [128, 32], torch.Generator().manual_seed(0))
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=8, sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()  # culprit
    own = torch.utils.data.Subset(held_out, range(rank, len(held_out), world))
    hits = torch.zeros(1)
    with torch.no_grad():
        for inputs, labels in DataLoader(own, batch_size=16):
            hits += (model(inputs).argmax(-1) == labels).sum()
    dist.all_reduce(hits)
    if rank == 0:
        print(f"validation accuracy {hits.item() / len(held_out):.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
