import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard


def shard_of(data: torch.Tensor, mesh: DeviceMesh):
    """The part of the data that this rank trains on."""
    index, count = mesh.get_local_rank("shard"), mesh["shard"].size()  # culprit
    return data[index::count]  # culprit


def main():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.SiLU(), nn.Linear(24, 6))
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    data = torch.randn(128, 6)
    own = torch.utils.data.TensorDataset(shard_of(data, mesh))
    loader = torch.utils.data.DataLoader(own, batch_size=8)  # culprit
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(2):
        for (x,) in loader:  # culprit
            loss = (model(x) - x.flip(1)).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    if dist.get_rank() == 0:
        print("hsdp over", loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
