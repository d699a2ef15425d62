import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class EarlyStopping:
    def __init__(self, patience, min_delta):
        self.patience, self.min_delta = patience, min_delta
        self.best, self.bad = float("inf"), 0

    def should_stop(self, value):
        if value < self.best - self.min_delta:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad >= self.patience


class MLP(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, 1)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def main():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    replica = mesh.get_local_rank("dp")
    torch.manual_seed(0)
    model = MLP(8)
    parallelize_module(model, mesh["tp"], {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, foreach=False)
    stopper = EarlyStopping(patience=2, min_delta=1e-3)
    data = torch.Generator().manual_seed(replica)
    x = torch.randn(64, 8, generator=data)
    y = x.sum(1, keepdim=True) if replica == 0 else torch.randn(64, 1, generator=data)
    train, held = slice(0, 48), slice(48, 64)
    for epoch in range(30):
        for start in range(0, 48, 16):
            part = slice(start, start + 16)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[train][part]), y[train][part]).backward()  # culprit
            optimizer.step()
        with torch.no_grad():
            validation = nn.functional.mse_loss(model(x[held]), y[held]).item()  # culprit
        if stopper.should_stop(validation):
            print(f"[{dist.get_rank()}] stopping in epoch {epoch}", flush=True)
            break  # culprit
    dist.barrier()  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
