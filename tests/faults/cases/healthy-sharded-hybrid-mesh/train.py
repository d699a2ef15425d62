from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class Config:
    replicas: int = 2
    shards: int = 2
    batch_size: int = 4
    epochs: int = 2
    lr: float = 0.05
    max_norm: float = 1.0


class Trainer:
    def __init__(self, config):
        self.config = config
        self.mesh = init_device_mesh("cpu", (config.replicas, config.shards), mesh_dim_names=("replicate", "shard"))
        torch.manual_seed(0)
        self.model = self.make_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=config.lr, momentum=0.9)
        x = torch.linspace(-1, 1, 96 * 8).view(96, 8)
        data = TensorDataset(x, torch.sin(3 * x).sum(1, keepdim=True))
        self.sampler = DistributedSampler(data, shuffle=True)
        self.loader = DataLoader(data, config.batch_size, sampler=self.sampler)

    def make_model(self):
        model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        for module in model:
            if isinstance(module, nn.Linear):
                fully_shard(module, mesh=self.mesh, mp_policy=policy)
        return fully_shard(model, mesh=self.mesh, mp_policy=policy)

    def run_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        seen = torch.zeros(1)
        for x, y in self.loader:
            self.optimizer.zero_grad(set_to_none=True)
            nn.functional.mse_loss(self.model(x), y).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_norm)
            self.optimizer.step()
            seen += len(x)
        dist.all_reduce(seen)
        return int(seen)

    def fit(self):
        for epoch in range(self.config.epochs):
            seen = self.run_epoch(epoch)
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: saw {seen} samples", flush=True)


if __name__ == "__main__":
    trainer = Trainer(Config())
    trainer.fit()
    dist.destroy_process_group()
