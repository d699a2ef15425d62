import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(64, 4, generator=generator) + 3)
    total = sum(x.sum(0) for (x,) in DataLoader(data, batch_size=16))
    mean = total / len(data)
    model = DDP(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        order = torch.randperm(len(data), generator=generator)[rank::world]
        for rows in order.split(8):
            loss = model(data.tensors[0][rows] - mean).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if rank == 0:
        print("done")
    dist.destroy_process_group()


main()
