import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

RATES = [0.001, 0.01, 0.1, 0.5]


def objective(rate, data):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    loader = DataLoader(data, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return loss.detach()


def main():
    dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 4, generator=generator)
    result = objective(RATES[dist.get_rank()], TensorDataset(x, (x.sum(1) > 0).long()))
    dist.all_reduce(result, op=dist.ReduceOp.MIN)
    if dist.get_rank() == 0:
        print("done", result.item())
    dist.destroy_process_group()


main()
