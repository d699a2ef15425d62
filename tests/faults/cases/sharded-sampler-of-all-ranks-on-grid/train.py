import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Lines(Dataset):
    def __len__(self):
        return 128

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        return torch.randint(0, 20, (9,), generator=g)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class LM(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, 20)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def parallelize(model, mesh):
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(layer, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


def main():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = parallelize(LM(), mesh)
    data = Lines()
    sampler = DistributedSampler(data, shuffle=True, seed=3)  # culprit
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=0)  # culprit
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    for ids in loader:  # culprit
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if dist.get_rank() == 0:
        print("epoch over", loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
