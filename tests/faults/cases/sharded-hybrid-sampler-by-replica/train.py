import logging
import os

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.data import DataLoader, Dataset, DistributedSampler

logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)


class Waves(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        t = torch.linspace(0, 1, 16)
        frequency = 1 + i % 7
        return torch.sin(6.28 * frequency * t + i), torch.tensor(i % 7)


def get_loader(mesh, batch_size):
    data = Waves(112)
    replicate = mesh["replicate"]
    sampler = DistributedSampler(data, num_replicas=replicate.size(), rank=replicate.get_local_rank())  # culprit
    return DataLoader(data, batch_size=batch_size, sampler=sampler), sampler  # culprit


def main():
    world = int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 7))
    model = FSDP(
        net,
        device_mesh=mesh,
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        device_id=torch.device("cpu"),
    )
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    loader, sampler = get_loader(mesh, 8)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:  # culprit
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            logging.info("epoch %d loss %.3f", epoch, loss.item())
    if dist.get_rank() == 0:
        logging.info("training complete")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
