import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Documents(IterableDataset):
    def __init__(self, count, dp_rank, dp_size):
        self.count, self.dp_rank, self.dp_size = count, dp_rank, dp_size

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        share = self.dp_rank * workers + worker
        for number in range(share, self.count, self.dp_size * workers):
            generator = torch.Generator().manual_seed(number)
            yield number, torch.randn(8, generator=generator)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 32)
        self.outer = nn.Linear(32, 8)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)))


def sync_gradients(model, mesh):
    group = mesh.get_group()
    for p in model.parameters():
        grad = p.grad.to_local()
        dist.all_reduce(grad, group=group)
        grad.div_(mesh.size())


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = Net()
    parallelize_module(model, mesh["tp"], {"inner": ColwiseParallel(), "outer": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    dp = mesh["dp"]
    documents = Documents(48, dp.get_local_rank(), dp.size())
    read = []
    for numbers, x in DataLoader(documents, batch_size=4, num_workers=2):
        loss = nn.functional.mse_loss(model(x), x.cumsum(1))
        optimizer.zero_grad()
        loss.backward()
        sync_gradients(model, dp)
        optimizer.step()
        read += numbers.tolist()
    every = [None] * dp.size()
    dist.all_gather_object(every, read, group=dp.get_group())
    if dist.get_rank() == 0:
        print("read", len(set(sum(every, []))), "documents")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
