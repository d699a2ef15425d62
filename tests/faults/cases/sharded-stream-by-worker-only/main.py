import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader

from stream import ShuffledShards


class Expander(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.wide = nn.Linear(dim, 4 * dim)
        self.narrow = nn.Linear(4 * dim, 1)

    def forward(self, x):
        return self.narrow(torch.nn.functional.silu(self.wide(x)))


def main():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = Expander(10)
    parallelize_module(model, mesh["tp"], {"wide": ColwiseParallel(), "narrow": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    loader = DataLoader(ShuffledShards(shards=6, seed=0), batch_size=8, num_workers=2)  # culprit
    for epoch in range(2):
        loader.dataset.set_epoch(epoch)
        for x, y in loader:  # culprit
            loss = nn.functional.mse_loss(model(x).squeeze(1), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"finished training, loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
