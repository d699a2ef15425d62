import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, RandomSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.rand(96, 4, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(rows, rows.sum(1))
    draws = torch.Generator().manual_seed(100 + dist.get_rank())
    loader = DataLoader(data, batch_size=8, sampler=RandomSampler(data, True, 48, generator=draws))
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x)[:, 0], y).backward()
            optimizer.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
