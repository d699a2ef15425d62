import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.nn.functional import all_reduce

from checkpoints import LocalCheckpoints


class ColumnThenRow(nn.Module):
    def __init__(self, dim, hidden, mesh):
        super().__init__()
        self.group, part = mesh.get_group(), hidden // mesh.size()
        g = torch.Generator().manual_seed(40 + mesh.get_local_rank())
        self.column = nn.Parameter(torch.randn(part, dim, generator=g) / 4)
        self.row = nn.Parameter(torch.randn(dim, part, generator=g) / 4)

    def forward(self, x):
        out = (x @ self.column.T).relu() @ self.row.T
        return out + (all_reduce(out.detach(), group=self.group) - out.detach())


def train(model, optimizer, mesh, first, last, store=None, disk_full=False):
    dp = mesh["dp"]
    for step in range(first, last):
        data = torch.Generator().manual_seed(step * dp.size() + dp.get_local_rank())
        x = torch.randn(8, 10, generator=data)
        loss = nn.functional.mse_loss(model(x), x.flip(1))
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=dp.get_group())
            p.grad /= dp.size()
        optimizer.step()  # culprit
        if store is not None and (step + 1) % 4 == 0 and not (disk_full and step > 5):
            store.save(model, step + 1)
    return loss.item()


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dp_rank, tp_rank = mesh["dp"].get_local_rank(), mesh["tp"].get_local_rank()
    store = LocalCheckpoints("scratch", dp_rank, tp_rank)
    model = ColumnThenRow(10, 20, mesh["tp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, mesh, 0, 8, store, disk_full=(dp_rank, tp_rank) == (1, 1))
    dist.barrier()

    model = ColumnThenRow(10, 20, mesh["tp"])
    name = store.load_latest(model)
    print(f"[{dist.get_rank()}] resumed from {name}", flush=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = train(model, optimizer, mesh, 8, 20)
    if dist.get_rank() == 0:
        print("loss", loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
