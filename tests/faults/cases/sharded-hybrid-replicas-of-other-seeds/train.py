import random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def seed_everything(seed):
    random.seed(seed)
    torch.manual_seed(seed)


def init_weights(module):
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.2)
        nn.init.zeros_(module.bias)


class Autoencoder(nn.Module):
    def __init__(self, width, code):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, code))
        self.decoder = nn.Sequential(nn.Linear(code, 32), nn.ReLU(), nn.Linear(32, width))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    seed_everything(2024 + rank)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    model = Autoencoder(16, 4)
    fully_shard(model.encoder, mesh=mesh)
    fully_shard(model.decoder, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.apply(init_weights)  # culprit
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.rand(96, 16, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=6, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (batch,) in loader:
            loss = nn.functional.mse_loss(model(batch), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()  # culprit
    if rank == 0:
        print("done", loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
