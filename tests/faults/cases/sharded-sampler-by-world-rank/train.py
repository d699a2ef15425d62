import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class FeedForward(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.w1 = nn.Linear(dim, 2 * dim)
        self.w2 = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.w2(torch.relu(self.w1(x)))


class Trainer:
    def __init__(self):
        self.mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        self.model = self.build_model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, foreach=False)
        self.loader = self.build_loader()

    def build_model(self):
        torch.manual_seed(0)
        blocks = [FeedForward(8), FeedForward(8)]
        for block in blocks:
            parallelize_module(block, self.mesh["tp"], {"w1": ColwiseParallel(), "w2": RowwiseParallel()})
            fully_shard(block, mesh=self.mesh["dp"])
        return fully_shard(nn.Sequential(*blocks, nn.Linear(8, 1)), mesh=self.mesh["dp"])

    def build_loader(self):
        x = torch.randn(128, 8, generator=torch.Generator().manual_seed(1))
        data = TensorDataset(x, x.square().sum(1, keepdim=True))
        self.sampler = DistributedSampler(data, shuffle=True)  # culprit
        return DataLoader(data, batch_size=8, sampler=self.sampler)  # culprit

    def train(self, epochs):
        for epoch in range(epochs):
            self.sampler.set_epoch(epoch)
            for x, y in self.loader:  # culprit
                loss = nn.functional.mse_loss(self.model(x), y)
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
            if dist.get_rank() == 0:
                print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    Trainer().train(epochs=2)
    dist.destroy_process_group()
